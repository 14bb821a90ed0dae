"""Print the programs that this run of make qa needs: program, Debian package, RPM package, one word a line.

With --all those that any plan needs.
"""

import sys
from collections.abc import Iterator

from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import BOARDS, find_board
from hugepage_qa.report.qa_request import QaRequest

#: builds the actor; Debian's gcc alone comes without the headers of the C library
COMPILER = ("cc", "build-essential", "gcc")


def main() -> int:
    """Return 3 when make's variables ask for something that there is not."""
    try:
        programs = list(_of_all_plans() if "--all" in sys.argv[1:] else _of_request(QaRequest.from_environment()))
    except InputError as error:
        print(f"make qa: {error}", file=sys.stderr)
        return 3
    for program in programs:
        print(*program, sep="\n")
    return 0


def _of_all_plans() -> Iterator[tuple[str, str, str]]:
    yield from _emulators(tuple(BOARDS))
    yield COMPILER


def _of_request(request: QaRequest) -> Iterator[tuple[str, str, str]]:
    yield from _emulators(request.architectures)
    if not request.architectures and not request.in_lab:
        yield COMPILER


def _emulators(architectures: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for board in (find_board(architecture) for architecture in architectures):
        yield board.qemu, board.debian_qemu, board.rpm_qemu


if __name__ == "__main__":
    sys.exit(main())
