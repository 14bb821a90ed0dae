"""Domains as people write them, and files that are none: each is read, or refused in one line."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.domain_xml import domain_xml
from hugepage_qa.qemu.guest.foreign_domain import LONGEST, WantedGuest, read_domain
from hugepage_qa.qemu.guest.guest_description import (
    Cell,
    DeviceKind,
    GuestDescription,
    MemoryDevice,
    Source,
    pages_needed,
    pages_of_cells,
)
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.sizes import GIB, KIB, MIB

HUGE = "<memoryBacking><hugepages/></memoryBacking>"


def read(*parts: str, memory: str = "<memory unit='GiB'>4</memory>", default: int = 2 * MIB) -> WantedGuest:
    return read_domain(
        f"<domain type='kvm'><name>db1</name>{memory}{''.join(parts)}</domain>".encode(), lambda: default
    )


def test_the_document_of_ibm() -> None:
    """IBM, Improving Transactional Database Workloads in KVM Guests on IBM zSystems using Huge Pages, 4.1."""
    guest = read(HUGE, memory="<memory unit='GiB'>64</memory>", default=MIB)
    assert guest == WantedGuest("db1", (Cell(64 * GIB, MIB),))
    assert {pool.size: pages for pool, pages in pages_of_cells(guest.cells).items()} == {MIB: 65536}


def test_a_guest_on_ordinary_pages() -> None:
    assert read().cells == (Cell(4 * GIB, None),)
    small = "<memoryBacking><hugepages><page size='4'/></hugepages></memoryBacking>"
    assert read(small).cells == (Cell(4 * GIB, None),)


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("<memory>1048576</memory>", GIB),
        ("<memory unit='b'>1073741824</memory>", GIB),
        ("<memory unit='bytes'> 1073741824\n</memory>", GIB),
        ("<memory unit='k'>1048576</memory>", GIB),
        ("<memory unit='MiB'>1024</memory>", GIB),
        ("<memory unit='g'>1</memory>", GIB),
        ("<memory unit='KB'>1024000</memory>", 1024000000),
        ("<memory unit='TiB'>2</memory>", 2048 * GIB),
    ],
)
def test_units_are_those_of_libvirt(memory: str, size: int) -> None:
    assert read(memory=memory).cells[0].memory == size


CELLS = "<cpu><numa><cell id='1' memory='2' unit='GiB'/><cell id='0' memory='1048576'/></numa></cpu>"


def backing(pages: str) -> str:
    return f"<memoryBacking><hugepages>{pages}</hugepages></memoryBacking>"


@pytest.mark.parametrize(
    ("pages", "sizes"),
    [
        ("", (2 * MIB, 2 * MIB)),
        ("<page size='1' unit='G'/>", (GIB, GIB)),
        ("<page size='1' unit='G' nodeset='1'/>", (None, GIB)),
        ("<page size='2048' unit='KiB'/><page size='1' unit='GiB' nodeset='0'/>", (GIB, 2 * MIB)),
        ("<page size='1' unit='G' nodeset='0-1,^1'/><page size='32' unit='M' nodeset='1'/>", (GIB, 32 * MIB)),
    ],
)
def test_pages_of_cells(pages: str, sizes: tuple[int | None, ...]) -> None:
    cells = read(CELLS, backing(pages)).cells
    assert cells == (Cell(GIB, sizes[0]), Cell(2 * GIB, sizes[1]))


def test_nodes_of_the_host() -> None:
    strict = "<numatune><memory mode='strict' nodeset='0'/><memnode cellid='1' mode='strict' nodeset='1'/></numatune>"
    assert [cell.node for cell in read(CELLS, HUGE, strict).cells] == [0, 1]
    preferred = "<numatune><memory mode='preferred' nodeset='0'/></numatune>"
    assert [cell.node for cell in read(CELLS, HUGE, preferred).cells] == [None, None]
    several = read(HUGE, "<numatune><memory mode='strict' nodeset='0,2-3'/></numatune>")
    assert several.cells[0].node is None
    assert several.remarks == ("cell 0 is bound to nodes 0, 2, 3: how many pages of each it takes is not known before",)


def test_memory_devices_are_part_of_the_memory() -> None:
    devices = """<devices>
      <memory model='dimm'><target><size unit='MiB'>512</size><node>0</node></target></memory>
      <memory model='dimm'><source><pagesize unit='KiB'>1048576</pagesize><nodemask>1</nodemask></source>
        <target><size unit='GiB'>1</size><node>0</node></target></memory>
      <memory model='virtio-mem'><target><size unit='GiB'>1</size><node>0</node><requested unit='MiB'>64</requested>
        </target></memory>
      <memory model='nvdimm'><source><path>/pmem</path></source><target><size unit='MiB'>512</size></target></memory>
    </devices>"""
    assert read(HUGE, devices).cells == (
        Cell(GIB, 2 * MIB),
        Cell(512 * MIB, 2 * MIB),
        Cell(GIB, GIB, 1),
        Cell(64 * MIB, 2 * MIB),
    )


def test_memfd_needs_no_hugetlbfs() -> None:
    memfd = "<memoryBacking><hugepages/><source type='memfd'/></memoryBacking>"
    assert (read(HUGE).in_files, read(memfd).in_files) == (True, False)


def test_what_the_suite_writes_it_reads(site: Site) -> None:
    guest = GuestDescription(
        "guest-1",
        (Cell(GIB, 2 * MIB, 0), Cell(512 * MIB, GIB, 1), Cell(64 * MIB, None)),
        max_memory=8 * GIB,
        devices=(MemoryDevice("dimm0", DeviceKind.DIMM, GIB, 2 * MIB, cell=1),),
    )
    found = read_domain(domain_xml(guest, site).encode(), lambda: 0)
    assert found.name == guest.name
    assert pages_of_cells(found.cells) == pages_needed(guest)
    memfd = replace(guest, source=Source.MEMFD, cells=guest.cells[:2])
    assert not read_domain(domain_xml(memfd, site).encode(), lambda: 0).in_files


LAUGHS = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><domain><name>&b;</name></domain>'
OUTSIDE = '<!DOCTYPE d SYSTEM "file:///etc/passwd"><domain><name>x</name></domain>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not XML: no element found"),
        ("hello", "not XML: syntax error"),
        ("<domain><name>x</domain>", "not XML: mismatched tag"),
        ("<domain>\x00</domain>", "not XML"),
        ("<?xml version='1.0' encoding='none-such'?><domain/>", "not XML: unknown encoding"),
        ("<network><name>x</name></network>", "'network': expected the XML of a domain"),
        (LAUGHS, "it has a DOCTYPE"),
        (OUTSIDE, "it has a DOCTYPE"),
        (f"<domain>{' ' * LONGEST}</domain>", f"more than {LONGEST} bytes"),
        ("<domain/>", "name '': expected the name of a domain"),
        ("<domain><name>a\nb</name></domain>", r"name 'a\\nb'"),
        (f"<domain><name>{'x' * 300}</name></domain>", "expected the name of a domain"),
        ("<domain><name>x</name></domain>", "no <memory> in <domain>"),
    ],
)
def test_what_is_no_domain_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read_domain(text.encode(), lambda: MIB)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("<memory unit='GiB'>4.5</memory>", "<memory>: '4.5' 'GiB': expected a whole number and a unit"),
        ("<memory unit='pages'>4</memory>", "'4' 'pages'"),
        ("<memory>-4</memory>", "'-4' 'KiB'"),
        ("<memory>0</memory>", "memory of 0 bytes"),
        (f"<memory>{'9' * 40}</memory>", "expected a whole number"),
        ("<memory>٤</memory>", "expected a whole number"),
    ],
)
def test_memory_that_is_none(parts: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(memory=parts)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (backing("<page/>"), "size of a huge page: '' 'KiB'"),
        (backing("<page size='0'/>"), "page size 0: expected a power of two"),
        (backing("<page size='3' unit='M'/>"), "page size 3145728: expected a power of two"),
        (backing("<page size='2' unit='M' nodeset='1'/>"), "hugepages: node 1 not found: it has 1 of them"),
        (
            backing("<page size='2' unit='M' nodeset='0-99999999999'/>"),
            "nodeset: '99999999999': expected a number below",
        ),
        (backing("<page size='2' unit='M' nodeset='0,^0'/>"), "expected at least one node"),
        (backing("<page size='2' unit='M' nodeset='all'/>"), "nodeset: 'all'"),
        ("<cpu><numa><cell id='1' memory='1'/></numa></cpu>", "NUMA cells 1: expected each of 0 to 0"),
        (
            "<cpu><numa><cell memory='1'/><cell id='0' memory='1'/></numa></cpu>",
            "NUMA cells 0: expected each of 0 to 1",
        ),
        ("<cpu><numa><cell id='0'/></numa></cpu>", "memory of NUMA cell 0: ''"),
        ("<numatune><memnode cellid='x' nodeset='0'/></numatune>", "cellid of a memnode: 'x'"),
        ("<devices><memory model='rom'/></devices>", "no <size> in <memory>"),
        (
            "<devices><memory model='rom'><target><size>1</size></target></memory></devices>",
            "memory device 'rom': expected one of nvdimm",
        ),
        (
            "<devices><memory model='dimm'><target><size unit='G'>4</size></target></memory></devices>",
            "memory of 4294967296 bytes: expected more than that of its memory devices",
        ),
    ],
)
def test_what_libvirt_would_refuse_is_named(parts: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(parts)


def test_the_default_size_is_asked_for_only_where_none_is_said() -> None:
    def unknown() -> int:
        raise InputError("not known")

    text: Callable[[str], bytes] = lambda part: f"<domain><name>x</name><memory>{KIB}</memory>{part}</domain>".encode()  # noqa: E731
    assert read_domain(text(backing("<page size='2' unit='M'/>")), unknown).cells[0].page == 2 * MIB
    with pytest.raises(InputError, match="not known"):
        read_domain(text(HUGE), unknown)


WHOLE = (
    "<domain><name>x</name><memory unit='GiB'>4</memory><memoryBacking><hugepages><page size='2' unit='M' nodeset='0'/>"
    "</hugepages></memoryBacking><numatune><memory mode='strict' nodeset='0-1'/></numatune><cpu><numa>"
    "<cell id='0' memory='1' unit='GiB'/></numa></cpu><devices><memory model='dimm'><target><size>1</size>"
    "<node>0</node></target></memory></devices></domain>"
)


@given(st.integers(0, len(WHOLE)), st.integers(0, 20), st.text("<>/'=0123456789-^,&; aGx", max_size=6))
def test_a_file_that_somebody_changed_is_read_or_refused(place: int, cut: int, put: str) -> None:
    with suppress(InputError):
        assert read_domain(f"{WHOLE[:place]}{put}{WHOLE[place + cut :]}".encode(), lambda: 2 * MIB).name
