"""Flags that differ between architectures."""

import pytest

from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.kernel.uapi import map_locked, map_noreserve

X86 = CapturedTree({"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu pse pdpe1gb\n\n"})
POWER = CapturedTree({"proc/cpuinfo": "processor\t: 0\ncpu\t\t: POWER9\n\ntimebase\t: 512000000\nMMU\t\t: Radix\n"})


@pytest.mark.parametrize(("tree", "noreserve", "locked"), [(X86, 0x4000, 0x2000), (POWER, 0x40, 0x80)])
def test_mmap_flags_are_those_of_the_architecture(tree: CapturedTree, noreserve: int, locked: int) -> None:
    assert (map_noreserve(tree), map_locked(tree)) == (noreserve, locked)
