"""Print the programs that this run of make qa needs: program or file, Debian package, RPM package, one word a line.

With --all those that any plan needs.
"""

import sys
from collections.abc import Iterator

from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import BOARDS, find_board
from hugepage_qa.lab.system.launch import Wish
from hugepage_qa.lab.system.platforms import PLATFORMS, Platform, find_platform
from hugepage_qa.lab.system.tools import TO_BUILD, TO_START, find_firmware, find_program
from hugepage_qa.report.qa_request import QaRequest

#: builds the actor; Debian's gcc alone comes without the headers of the C library
COMPILER = ("cc", "build-essential", "gcc")


def main() -> int:
    """Return 3 when make's variables ask for something that there is not."""
    try:
        wanted = _of_all_plans() if "--all" in sys.argv[1:] else _of_request(QaRequest.from_environment())
        programs = dict.fromkeys(wanted)
    except InputError as error:
        print(f"make qa: {error}", file=sys.stderr)
        return 3
    for program in programs:
        print(*program, sep="\n")
    return 0


def _of_all_plans() -> Iterator[tuple[str, str, str]]:
    yield from _emulators(tuple(BOARDS))
    for platform in PLATFORMS.values():
        yield from _of_system_machines(platform)
    yield COMPILER


def _of_request(request: QaRequest) -> Iterator[tuple[str, str, str]]:
    yield from _emulators(request.architectures)
    if request.in_lab:
        yield from _of_system_machines(find_platform(Wish.architecture))
    elif not request.architectures:
        yield COMPILER


def _emulators(architectures: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for board in (find_board(architecture) for architecture in architectures):
        yield board.qemu, board.debian_qemu, board.rpm_qemu


def _of_system_machines(platform: Platform) -> Iterator[tuple[str, str, str]]:
    yield from _emulators((platform.board.architecture,))
    for tool in dict.fromkeys((*TO_BUILD, *TO_START)):
        # a user's PATH may lack the directories of some that are there
        if find_program(tool) is None:
            yield tool.program, tool.debian, tool.rpm
    if find_firmware(platform) is None:
        yield str(platform.firmware[0].code), platform.debian_firmware, platform.rpm_firmware


if __name__ == "__main__":
    sys.exit(main())
