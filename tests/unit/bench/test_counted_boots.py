"""A real machine of the distribution's kernel whose clock counts instructions."""

import pytest

from hugepage_qa.bench.counted_kernels import CountedBoots, CountedKernel
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.qemu.packages import cache_directory
from hugepage_qa.sizes import MIB

pytestmark = pytest.mark.boots


def test_to_clear_a_huge_page_takes_an_instruction_for_each_word_and_always_as_many() -> None:
    kernel = CountedKernel(find_kernel("x86_64", Settings()))
    (boot,) = CountedBoots([kernel], 1, cache_directory(), machines=1).run()
    assert not boot.paths.missing
    for name in ("fault-hugetlb-2M", "fault-thp-2M"):
        rounds = sorted(boot.paths.lengths[name])
        assert 2 * MIB / 8 < rounds[0] < 2 * MIB / 2
        assert rounds[len(rounds) // 2] < 1.02 * rounds[0]
    assert boot.paths.lengths["reserve-hugetlb-2M"][0] < boot.paths.lengths["fault-hugetlb-2M"][0] / 10
