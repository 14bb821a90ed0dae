"""Transparent huge pages in shared memory: tmpfs by its mount option, all other by shmem_enabled."""

from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.fragmentation import expect_no_shortage, tell, with_blocks
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_memory import keep_min_free, map_aligned, map_start_of_file, mount_tmpfs, pmd_size
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.tree import size_directories, size_name
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest

SHARED = Area("thp/shared-memory", sizes=Sizes.ONCE)

DOC = f"{THP_DOC} Hugepages in tmpfs/shmem"
#: what is advised, and the policies that give huge pages then
_GIVEN = {None: ("always",), MADV_HUGEPAGE: ("always", "advise"), MADV_NOHUGEPAGE: ()}
_SOLE = 2


@SHARED.case(
    "shmem_enabled decides for anonymous shared memory: always, advise, never; deny and force go before all",
    f"{DOC} shmem_enabled",
)
def anonymous_shared_memory(live: Live) -> None:
    _only_pmd_inherits(live)
    for policy in ("always", "advise", "never", "deny", "force"):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        for advice, given in _GIVEN.items():
            huge = policy in given or (policy == "force" and advice != MADV_NOHUGEPAGE)
            memory = map_aligned(live, 1, pmd_size(live), shared=True, advice=advice)
            _expect(live, memory, huge, f"shmem_enabled={policy}, advice {advice}")


@SHARED.case(
    "huge= of a mount decides for the files of a tmpfs, whatever never and always of shmem_enabled say",
    f"{DOC} huge=",
)
def files_of_a_tmpfs(live: Live) -> None:
    _only_pmd_inherits(live)
    for policy, of_mount in product(("never", "always"), ("always", "advise", "never")):
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        point = mount_tmpfs(live, of_mount)
        for advice, given in _GIVEN.items():
            memory = _file(live, f"{point}/{advice}", advice)
            _expect(live, memory, of_mount in given, f"huge={of_mount}, shmem_enabled={policy}, advice {advice}")


@SHARED.case(
    "deny takes huge pages from every tmpfs, force gives them to every one",
    f"{DOC} deny, force",
)
def deny_and_force(live: Live) -> None:
    _only_pmd_inherits(live)
    for policy, of_mount, huge in (("deny", "always", False), ("force", "never", True)):
        point = mount_tmpfs(live, of_mount)
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        _expect(live, _file(live, f"{point}/file", None), huge, f"{policy}, huge={of_mount}")


@SHARED.case(
    "huge=within_size gives no huge page that would reach beyond the end of a file",
    f"{DOC} within_size; mm/shmem.c shmem_huge_global_enabled()",
)
def within_size(live: Live) -> None:
    _only_pmd_inherits(live)
    size = pmd_size(live)
    point = mount_tmpfs(live, "within_size")
    memory = map_start_of_file(live, f"{point}/long", length=_SOLE * size)
    _expect(live, memory, True, "a block within the file")
    short = map_start_of_file(live, f"{point}/short", length=size // _SOLE)
    short.touch()
    live.expect("ShmemPmdMapped of half a block", 0, short.smaps().shmem_pmd_mapped)
    # no more than the file is long, but for the page at its end
    live.expect("Rss of half a block", True, short.smaps().rss <= size // _SOLE)


def _only_pmd_inherits(live: Live) -> None:
    keep_min_free(live)
    live.set_knob(f"{DIRECTORY}/enabled", "madvise")
    if live.host.read(f"{DIRECTORY}/shmem_enabled") is None:
        raise CannotRun("this kernel has no shared memory in huge pages")
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "never")
    ours = f"{DIRECTORY}/{size_name(pmd_size(live))}"
    for path in size_directories(live.host, DIRECTORY).values():
        if live.host.read(f"{path}/shmem_enabled") is not None:  # since Linux 6.11
            live.set_knob(f"{path}/shmem_enabled", "inherit" if path == ours else "never")


def _file(live: Live, path: str, advice: int | None) -> Memory:
    memory = map_start_of_file(live, path)
    if advice is not None:
        memory.advise(advice)
    return memory


def _expect(live: Live, memory: Memory, huge: bool, where: str) -> None:
    now = with_blocks(live, memory.size, 1 if huge else 0)
    tell(live, now)
    memory.fill()
    mapping = memory.smaps()
    if huge and mapping.shmem_pmd_mapped != memory.size:
        expect_no_shortage(live, memory.size, 1)
    live.expect(f"ShmemPmdMapped, {where} ({now})", memory.size if huge else 0, mapping.shmem_pmd_mapped)
    live.expect(f"AnonHugePages, {where}", 0, mapping.anon_huge_pages)
    memory.expect_filled()


class ThpSharedMemory(LiveTest):
    """Transparent huge pages in shared memory.

    :avocado: enable
    """

    def test_shared_memory(self) -> None:
        """Every case, once for the machine."""
        self.run_area(SHARED)
