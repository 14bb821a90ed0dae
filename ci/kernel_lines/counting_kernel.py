"""Build an x86_64 kernel that counts which lines of its huge page code run.

    python -m ci.kernel_lines.counting_kernel                 # 6.1
    python -m ci.kernel_lines.counting_kernel --series 6.12

It is the healthy source of a seeded kernel with the same configuration, and gcov in the files that know of huge pages.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ci.seeded_kernel.build_kernel import ROOT, SUITES, build, unpacked
from ci.seeded_kernel.seeded_source import SeededSource

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError

PLACE = ROOT / "build" / "kernel-lines"
#: below the source; others have huge pages pass through, too, and do not know
COUNTED = (
    *("arch/x86/mm/hugetlbpage.c", "arch/x86/mm/pgtable.c", "drivers/base/node.c", "fs/hugetlbfs/inode.c"),
    *("fs/proc/meminfo.c", "fs/proc/page.c", "fs/proc/task_mmu.c", "fs/userfaultfd.c", "ipc/shm.c", "mm/compaction.c"),
    *("mm/filemap.c", "mm/gup.c", "mm/huge_memory.c", "mm/hugetlb.c", "mm/hugetlb_cgroup.c", "mm/hugetlb_vmemmap.c"),
    *("mm/khugepaged.c", "mm/ksm.c", "mm/madvise.c", "mm/memcontrol.c", "mm/memfd.c", "mm/memory-failure.c"),
    *("mm/memory.c", "mm/mempolicy.c", "mm/migrate.c", "mm/mincore.c", "mm/mlock.c", "mm/mmap.c", "mm/mprotect.c"),
    *("mm/mremap.c", "mm/page_idle.c", "mm/page_vma_mapped.c", "mm/pagewalk.c", "mm/pgtable-generic.c", "mm/rmap.c"),
    *("mm/shmem.c", "mm/swap.c", "mm/swap_state.c", "mm/swapfile.c", "mm/truncate.c", "mm/userfaultfd.c"),
    *("mm/vmscan.c", "mm/zswap.c"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, and return the exit code."""
    parser = Parser("counting-kernel", description="Build a kernel that counts which lines of huge page code run.")
    parser.add_argument("--series", default="6.1", choices=SUITES, help="series of the kernel  [6.1]")
    options = parser.parse_args(arguments)
    place = PLACE / options.series
    try:
        place.mkdir(parents=True, exist_ok=True)
        source = SeededSource(unpacked(options.series, place), place / "originals")
        have_counted(source.tree)
        build(source, place, [Path(__file__).with_name("lines.config")])
    except InputError as error:
        print(f"counting-kernel: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    print(f"built {place / 'bzImage'}: python -m ci.kernel_lines.unrun_lines {place / 'bzImage'}")
    return ExitCode.GOOD


def have_counted(source: Path) -> None:
    """Have the Makefiles of ``source`` compile the files of COUNTED with gcov (Documentation/dev-tools/gcov.rst)."""
    for name in map(Path, COUNTED):
        file = source / name.with_name("Makefile")
        line = f"GCOV_PROFILE_{name.stem}.o := y\n"
        text = file.read_text(encoding="utf-8")
        if line not in text:
            file.write_text(text + line, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
