"""Print the emulators that this run of make qa needs: program, Debian package, RPM package, one word a line."""

import sys

from hugepage_qa.errors import InputError
from hugepage_qa.lab.boards import find_board
from hugepage_qa.report.qa_request import QaRequest


def main() -> int:
    """Return 3 when make's variables ask for something that there is not."""
    try:
        architectures = QaRequest.from_environment().architectures
    except InputError as error:
        print(f"make qa: {error}", file=sys.stderr)
        return 3
    for architecture in architectures:
        board = find_board(architecture)
        print(board.qemu, board.debian_qemu, board.rpm_qemu, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
