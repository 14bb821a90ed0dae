"""What a page table covers, by the headers of each architecture."""

import pytest

from hugepage_qa.oracle.architecture import MMUS
from hugepage_qa.sizes import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("name", "size", "covered"),
    [
        ("x86_64 4K", 2 * MIB, GIB),
        ("x86_64 4K", GIB, 512 * GIB),
        ("aarch64 4K", 64 * KIB, 2 * MIB),
        ("aarch64 4K", 32 * MIB, GIB),
        ("aarch64 16K", 32 * MIB, 64 * GIB),
        ("aarch64 64K", 512 * MIB, 4096 * GIB),
        ("ppc64le 64K radix", 2 * MIB, GIB),
        ("ppc64le 64K hash", 16 * MIB, 16 * GIB),
        ("ppc64le 4K hash", 16 * MIB, 256 * MIB),
        ("s390x 4K", MIB, 2 * GIB),
        ("s390x 4K", 2 * GIB, 4096 * GIB),
    ],
)
def test_what_a_table_covers(name: str, size: int, covered: int) -> None:
    assert MMUS[name].table(size) == covered


def test_whose_entries_are_of_the_level_above_the_pmd() -> None:
    sizes = [(name, size) for name, mmu in MMUS.items() for size in mmu.hugetlb if mmu.has_pud_entries(size)]
    assert sizes == [
        ("x86_64 4K", GIB),
        ("aarch64 4K", GIB),
        ("ppc64le 64K radix", GIB),
        ("ppc64le 64K hash", 16 * GIB),
        ("ppc64le 4K radix", GIB),
        ("ppc64le 4K hash", 16 * GIB),
        ("s390x 4K", 2 * GIB),
    ]
