"""Where memory lies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.log import parse_log
from hugepage_qa.kernel.memory_layout import (
    FreeBlocks,
    MemoryMap,
    Zone,
    early_node_ranges,
    initrd_ranges,
    read_free_blocks,
    read_memory_map,
    read_zones,
)
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import Span

IOMEM = """\
00000000-00000fff : Reserved
00001000-0009fbff : System RAM
00100000-bfffffff : System RAM
  01000000-0220ba47 : Kernel code
  02400000-02e09fff : Kernel rodata
  03000000-0327c53f : Kernel data
  03b34000-03c57fff : Kernel bss
  04000000-040fffff : reserved
fec00000-fec003ff : PNP0003:00
100000000-63fffffff : System RAM (kmem)
"""

ZONEINFO = """\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1267
  pages free     3840
        boost    0
        min      47
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 3019, 24105, 24105)
      nr_free_cma  0
      nr_unaccepted 1024
  pagesets
    cpu: 0
              count:    9
    cpu: 1
              count:    5
  node_unreclaimable:  0
  start_pfn:           1
Node 1, zone  Movable
  pages free     0
        spanned  0
        present  0
        managed  0
        protection: (0, 0)
"""


def test_memory_map() -> None:
    assert read_memory_map(CapturedTree({"proc/iomem": IOMEM})) == MemoryMap(
        system_ram=(Span(0x1000, 0x9FC00), Span(0x100000, 0xC0000000), Span(0x100000000, 0x640000000)),
        kernel={
            "code": Span(0x1000000, 0x220BA48),
            "rodata": Span(0x2400000, 0x2E0A000),
            "data": Span(0x3000000, 0x327C540),
            "bss": Span(0x3B34000, 0x3C58000),
        },
        reserved=(Span(0, 0x1000), Span(0x4000000, 0x4100000)),
    )


def test_zero_addresses_are_no_memory_map() -> None:
    text = "00000000-00000000 : System RAM\n  00000000-00000000 : Kernel code\n"
    assert read_memory_map(CapturedTree({"proc/iomem": text})) is None
    assert read_memory_map(CapturedTree({})) is None


@pytest.mark.parametrize("line", ["00-zz : System RAM", "10-0f : System RAM", "System RAM"])
def test_malformed_memory_map_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/iomem, line 2: "):
        read_memory_map(CapturedTree({"proc/iomem": f"00000000-00000fff : Reserved\n{line}\n"}))


def test_early_node_ranges() -> None:
    log = parse_log(
        """\
<6>[    0.002] Early memory node ranges
<6>[    0.002]   node   0: [mem 0x0000000000001000-0x000000000009efff]
<6>[    0.002]   node   1: [mem 0x0000000100000000-0x000000017fffffff]
<6>[    0.002]   node   0: [mem 0x0000000000100000-0x00000000bfffffff]
<6>[    0.003] Initmem setup node 0 [mem 0x0000000000001000-0x00000000bfffffff]
"""
    )
    assert early_node_ranges(log) == {
        0: (Span(0x1000, 0x9F000), Span(0x100000, 0xC0000000)),
        1: (Span(0x100000000, 0x180000000),),
    }


def test_initrd_that_the_kernel_moved() -> None:
    log = parse_log(
        """\
<6>[    0.001] RAMDISK: [mem 0xbf8c0000-0xbfffffff]
<6>[    0.001] Allocated new RAMDISK: [mem 0x3f8c0000-0x3fffffff]
<6>[    0.001] Move RAMDISK from [mem 0xbf8c0000-0xbfffffff] to [mem 0x3f8c0000-0x3fffffff]
"""
    )
    assert initrd_ranges(log) == (Span(0xBF8C0000, 0xC0000000), Span(0x3F8C0000, 0x40000000))


def test_initrd_on_powerpc_is_a_kernel_address() -> None:
    log = parse_log("<6>[    0.0] Found initrd at 0xc000000003200000:0xc00000000332a400\n")
    assert initrd_ranges(log) == (Span(0x3200000, 0x332A400),)


def test_zones() -> None:
    assert read_zones(CapturedTree({"proc/zoneinfo": ZONEINFO})) == (
        Zone(
            0,
            "DMA",
            free=3840,
            spanned=4095,
            present=3998,
            managed=3840,
            start_pfn=1,
            cma=0,
            listed=14,
            unaccepted=1024,
            kept=47 + 24105,
        ),
        Zone(1, "Movable", free=0, spanned=0, present=0, managed=0, start_pfn=None),
    )


def test_zone_without_sizes_is_named() -> None:
    text = ZONEINFO + "Node 2, zone Normal\n  pages free 5\n"
    with pytest.raises(InputError, match=r"^/proc/zoneinfo, line 27: .*'managed', 'present', 'spanned'"):
        read_zones(CapturedTree({"proc/zoneinfo": text}))


def test_free_blocks() -> None:
    text = "Node 0, zone      DMA      0      1      3 \nNode 1, zone   Normal    942    795   1037 \n"
    assert read_free_blocks(CapturedTree({"proc/buddyinfo": text})) == (
        FreeBlocks(0, "DMA", (0, 1, 3)),
        FreeBlocks(1, "Normal", (942, 795, 1037)),
    )


def test_malformed_free_blocks_are_named() -> None:
    with pytest.raises(InputError, match=r"^/proc/buddyinfo, line 1: "):
        read_free_blocks(CapturedTree({"proc/buddyinfo": "Node 0, zone DMA x\n"}))


def test_log_and_memory_map_agree(any_capture: CapturedTree) -> None:
    memory_map = read_memory_map(any_capture)
    assert memory_map is not None
    early = early_node_ranges(parse_log(any_capture.read("dmesg") or ""))
    assert early
    for area in (area for areas in early.values() for area in areas):
        # the log counts in whole pages, and on some architectures as System RAM with holes
        assert any(ram.start <= area.end and area.start <= ram.end for ram in memory_map.system_ram)


def test_zones_lie_in_the_logged_ranges(any_capture: CapturedTree) -> None:
    zones = read_zones(any_capture)
    early = early_node_ranges(parse_log(any_capture.read("dmesg") or ""))
    assert {zone.node for zone in zones if zone.present} == set(early)
    assert all(zone.managed <= zone.present <= zone.spanned for zone in zones)
    assert {(blocks.node, blocks.zone) for blocks in read_free_blocks(any_capture)} == {
        (zone.node, zone.name) for zone in zones if zone.present
    }


@given(st.text() | st.from_regex(r"(Node [0-9], zone [A-Z]{1,3}( +[0-9]{0,2}){0,3}\n?){0,2}", fullmatch=True))
def test_nothing_but_input_error(text: str) -> None:
    for path, reader in (
        ("proc/iomem", read_memory_map),
        ("proc/zoneinfo", read_zones),
        ("proc/buddyinfo", read_free_blocks),
    ):
        try:
            reader(CapturedTree({path: text}))
        except InputError as error:
            assert "\n" not in str(error)


@given(st.text())
def test_every_log_is_fine(text: str) -> None:
    log = parse_log(text + "\n  node   0: [mem 0x1-0x2]")
    assert early_node_ranges(log)[0][-1] == Span(1, 3)
    assert isinstance(initrd_ranges(log), tuple)
