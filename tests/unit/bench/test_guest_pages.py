"""A guest whose memory is not on the pages that its configuration names gives no figure."""

import pytest

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.guest_database import expect_buffers, parse_counters
from hugepage_qa.bench.measured_guest import expect_pages
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import GIB, KIB, MIB

BASE, THP = Backing(Kind.BASE, 4096), Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
SHP, LARGE = Backing(Kind.STATIC, 2 * MIB, is_default=True), Backing(Kind.STATIC, GIB)

# code that an emulator has translated, which is as large as the guest and on transparent pages
CODE = """\
7f0000000000-7f0040000000 rwxp 00000000 00:00 0
Size:            1048576 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
Rss:              524288 kB
AnonHugePages:    524288 kB
VmFlags: rd wr ex mr mw me ac hg
"""


def qemu(page: int, rss: int, transparent: int = 0, static: int = 0, size: int = GIB) -> CapturedTree:
    """Return a machine with a QEMU whose guest has ``size`` bytes, of them so many on pages of each kind."""
    flags = "rd wr mr mw me ht" if static or page > 4096 else "rd wr mr mw me"
    text = (
        f"{CODE}7f4000000000-{0x7F4000000000 + size:x} rw-p 00000000 00:00 0\nSize: {size // KIB} kB\n"
        f"KernelPageSize: {page // KIB} kB\nMMUPageSize: {page // KIB} kB\nRss: {rss // KIB} kB\n"
        f"AnonHugePages: {transparent // KIB} kB\nPrivate_Hugetlb: {static // KIB} kB\nVmFlags: {flags}\n"
    )
    return CapturedTree({"proc/7/smaps": text})


ON_BASE, ON_THP = qemu(4096, GIB), qemu(4096, GIB, transparent=GIB - 4 * MIB)
ON_SHP, ON_LARGE = qemu(2 * MIB, 0, static=GIB), qemu(GIB, 0, static=GIB)


@pytest.mark.parametrize(("backing", "tree"), [(BASE, ON_BASE), (THP, ON_THP), (SHP, ON_SHP), (LARGE, ON_LARGE)])
def test_on_its_pages(backing: Backing, tree: CapturedTree) -> None:
    huge = {BASE: 0, THP: GIB - 4 * MIB}.get(backing, GIB)
    assert expect_pages(tree, 7, backing, GIB) == huge


@pytest.mark.parametrize(
    ("backing", "tree", "said"),
    [
        (BASE, ON_THP, "1020M of it are on transparent pages, expected none"),
        (BASE, ON_SHP, "1G of it are on static pages"),
        (THP, ON_LARGE, "1G of it are on static pages of 1G"),
        (SHP, ON_BASE, "0 of it are on transparent pages"),
        (SHP, ON_THP, "transparent pages"),
        (SHP, ON_LARGE, "static pages of 1G, expected all of it on its own"),
        (LARGE, ON_SHP, "static pages of 2M, expected all of it on its own"),
        (SHP, qemu(2 * MIB, 0, static=GIB // 2), "512M of it are on static pages of 2M"),
        (BASE, qemu(4096, GIB, size=GIB // 2), "no memory of this size"),
        (BASE, CapturedTree({}), "no memory of this size"),
    ],
)
def test_on_other_pages(backing: Backing, tree: CapturedTree, said: str) -> None:
    with pytest.raises(InputError, match=said):
        expect_pages(tree, 7, backing, GIB)


@pytest.mark.parametrize("tree", [ON_BASE, qemu(4096, GIB, transparent=GIB * 4 // 5)])
def test_a_kernel_with_too_few_transparent_pages(tree: CapturedTree) -> None:
    with pytest.raises(Unavailable, match="the kernel gave no more"):
        expect_pages(tree, 7, THP, GIB)
    assert expect_pages(tree, 7, THP, GIB, share=0) < GIB


def meminfo(total: int, free: int, reserved: int) -> dict[str, int]:
    return parse_counters(
        f"PageTables: 5120 kB\nHugePages_Total: {total}\nHugePages_Free: {free}\nHugePages_Rsvd: {reserved}\n"
        "Hugepagesize:    2048 kB\n"
    )


def test_buffers_on_the_huge_pages_of_the_guest() -> None:
    expect_buffers(meminfo(160, 150, 118), 256 * MIB, is_huge=True)
    expect_buffers(meminfo(0, 0, 0), 256 * MIB, is_huge=False)


@pytest.mark.parametrize(
    ("counters", "is_huge", "said"),
    [
        (meminfo(160, 160, 0), True, "0 of its huge pages are in use, expected 256M"),
        (meminfo(160, 150, 100), True, "220M of its huge pages are in use, expected 256M"),
        (meminfo(160, 150, 118), False, "256M of its huge pages are in use, expected none"),
    ],
)
def test_buffers_on_other_pages_of_the_guest(counters: dict[str, int], is_huge: bool, said: str) -> None:
    with pytest.raises(InputError, match=said):
        expect_buffers(counters, 256 * MIB, is_huge=is_huge)
