"""The same reservation at run time, on fragmented memory: evidence for what a reservation at boot is worth."""

from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.pools import DIRECTORY
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.kernel.values import read_integer, size_name
from hugepage_qa.model.compare import Difference
from hugepage_qa.model.rules import HUGETLB_DOC, Rule
from hugepage_qa.reboot.fragment import fragmented_memory

NEVER_MORE = Rule(
    "never-more-than-asked",
    "a write to nr_hugepages never makes the pool larger than the number that was written",
    f"{HUGETLB_DOC} nr_hugepages; mm/hugetlb.c set_max_huge_pages()",
)

_DROP_CACHES = "proc/sys/vm/drop_caches"
_CLEAN_CACHE = "1"


@dataclass(frozen=True)
class RunTimeReservation:
    """How many pages of those ``asked`` the pool got; ``log`` shows the free blocks before, in between and after."""

    asked: int
    got: int
    pinned: int
    log: str

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return f"at run time {self.got} of {self.asked} pages came, with {self.pinned} unmovable pages in memory"

    def differences(self) -> list[Difference]:
        """Return what is wrong: fewer pages are not, that is what fragmentation does."""
        if self.got <= self.asked:
            return []
        return [Difference("nr_hugepages at run time", NEVER_MORE, f"at most {self.asked}", str(self.got))]


def reserve_at_run_time(pages: int, size: int, root: Path = Path("/")) -> RunTimeReservation:
    """Ask for ``pages`` of ``size`` bytes on fragmented memory, and put the pool back. Raises InputError."""
    tree = DirectoryTree(root)
    path = f"{DIRECTORY}/{size_name(size)}/nr_hugepages"
    before = read_integer(tree, path)
    if before is None:
        raise InputError(f"/{path}: no such file, expected a pool of the default size")
    shown = [_free_blocks("before", tree)]
    _write(root / _DROP_CACHES, _CLEAN_CACHE)
    try:
        with fragmented_memory(size, tree) as pinned:
            shown.append(_free_blocks("fragmented", tree))
            _write(root / path, str(pages))
            got = read_integer(tree, path) or 0
            shown.append(_free_blocks(f"{got} of {pages} pages reserved", tree))
    finally:
        _write(root / path, str(before))
    return RunTimeReservation(pages, got, pinned, "\n".join(shown))


def _free_blocks(moment: str, tree: DirectoryTree) -> str:
    return f"--- /proc/buddyinfo, {moment}\n{tree.read('proc/buddyinfo') or 'cannot be read'}"


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(f"{value}\n", encoding="ascii")
    except OSError as error:
        raise InputError(f"{path}: {value} cannot be written ({error.strerror}): expected to be root") from error
