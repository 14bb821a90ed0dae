"""What real kernels of four architectures showed; every value below was read by hand in the raw text."""

from collections.abc import Callable

import pytest

from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.kernel.log import huge_page_lines
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import GIB, KIB, MIB, Span

Capture = Callable[[str], CapturedTree]


def huge_page_texts(facts: Facts) -> list[str]:
    return [line.text for line in huge_page_lines(facts.log) if "HugeTLB" in line.text or "cma" in line.text]


def pool_sizes(facts: Facts) -> dict[int, int]:
    return {pool.size: pool.files["nr_hugepages"] for pool in facts.pools}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("x86_64-max-6.1-nodes", {2 * MIB: 64, GIB: 1}),
        ("x86_64-max-7.2-nodes", {2 * MIB: 64, GIB: 1}),
        ("x86_64-max-7.3-nodes", {2 * MIB: 64, GIB: 1}),
        ("x86_64-max-7.3-cma-only", {2 * MIB: 0, GIB: 2}),
        ("x86_64-qemu64-6.1-plain", {2 * MIB: 16}),
        ("x86_64-max-6.1-over-ask", {2 * MIB: 0, GIB: 0}),
        ("aarch64-max-6.1-nodes", {64 * KIB: 32, 2 * MIB: 0, 32 * MIB: 0, GIB: 0}),
        ("aarch64-max-7.2-plain", {64 * KIB: 0, 2 * MIB: 16, 32 * MIB: 0, GIB: 0}),
        ("ppc64le-power8-6.1-plain", {16 * MIB: 8}),
        ("ppc64le-power9-6.1-plain", {2 * MIB: 16, GIB: 0}),
        ("s390x-max-6.1-plain", {}),
        ("s390x-max-7.2-plain", {}),
    ],
)
def test_pools(capture: Capture, name: str, sizes: dict[int, int]) -> None:
    assert pool_sizes(read_facts(capture(name))) == sizes


@pytest.mark.parametrize(
    ("name", "base", "mmu", "model"),
    [
        ("x86_64-max-6.1-nodes", 4 * KIB, None, "QEMU TCG CPU version 2.5+"),
        ("x86_64-qemu64-6.1-plain", 4 * KIB, None, "QEMU Virtual CPU version 2.5+"),
        ("aarch64-max-6.1-nodes", 4 * KIB, None, "implementer 0x00 part 0x051"),
        ("ppc64le-power8-6.1-plain", 64 * KIB, "Hash", "POWER8 (architected), altivec supported"),
        ("ppc64le-power9-6.1-plain", 64 * KIB, "Radix", "POWER9 (architected), altivec supported"),
        # the distribution went from 64K pages to 4K pages in between
        ("ppc64le-power9-7.2-plain", 4 * KIB, "Radix", "POWER9 (architected), altivec supported"),
        ("s390x-max-6.1-plain", 4 * KIB, None, "machine 8561"),
    ],
)
def test_processor(capture: Capture, name: str, base: int, mmu: str | None, model: str) -> None:
    cpu = read_facts(capture(name)).cpu
    assert (cpu.base_page_size, cpu.mmu, cpu.model) == (base, mmu, model)


def test_processor_features(capture: Capture) -> None:
    assert {"pse", "pdpe1gb"} <= read_facts(capture("x86_64-max-6.1-nodes")).cpu.features
    assert {"pse", "pdpe1gb"} & read_facts(capture("x86_64-qemu64-6.1-plain")).cpu.features == {"pse"}
    assert "sha512" in read_facts(capture("aarch64-max-6.1-nodes")).cpu.features
    s390 = read_facts(capture("s390x-max-7.2-plain")).cpu
    # this emulated machine has neither EDAT, so facilities 8 and 78 are missing
    assert "zarch" in s390.features
    assert not {"edat", "edat1", "edat2"} & s390.features
    assert s390.count == 1


def test_two_nodes_on_x86(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-6.1-nodes"))
    observations = facts.observations()
    assert facts.release == "6.1.0-56-cloud-amd64"
    assert observations["node0/hugepages-2048kB/nr_hugepages"] == 32
    assert observations["node1/hugepages-2048kB/nr_hugepages"] == 32
    assert observations["node0/hugepages-1048576kB/nr_hugepages"] == 0
    assert observations["node1/hugepages-1048576kB/nr_hugepages"] == 1
    assert observations["hugepages-1048576kB/demote_size"] == 2 * MIB
    assert observations["meminfo/MemTotal"] == 4027236 * KIB
    assert observations["node0/meminfo/MemTotal"] == 1964848 * KIB
    assert observations["meminfo/Hugetlb"] == 1179648 * KIB
    assert observations["vm/hugetlb_optimize_vmemmap"] == 0
    assert (facts.nodes.online, facts.nodes.has_memory) == ((0, 1), (0, 1))
    assert {number: node.cpus for number, node in facts.nodes.each.items()} == {0: (0,), 1: ()}
    # the kernel configuration of this one has no CMA, and then meminfo has no lines of it
    assert "meminfo/CmaTotal" not in observations


def test_memory_of_two_nodes_on_x86(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-6.1-nodes"))
    assert facts.early_ranges == {
        0: (Span(0x1000, 0x9F000), Span(0x100000, 0x7FFE0000)),
        1: (Span(0x100000000, 0x180000000),),
    }
    assert facts.initrd == (Span(0x7FDFB000, 0x7FFE0000),)


def test_node_without_memory(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-6.1-memoryless"))
    observations = facts.observations()
    assert (facts.nodes.online, facts.nodes.has_memory) == ((0, 1), (0,))
    assert (facts.nodes.each[0].cpus, facts.nodes.each[1].cpus) == ((0,), (1,))
    assert observations["node1/meminfo/MemTotal"] == 0
    assert observations["node1/hugepages-2048kB/nr_hugepages"] == 0
    assert observations["hugepages-2048kB/nr_hugepages"] == 8
    assert observations["transparent_hugepage/enabled"] == "never"
    assert observations["process/khugepaged"] == "absent"
    assert "HugeTLB: allocating 8 of page size 2.00 MiB failed node1.  Only allocated 0 hugepages." in huge_page_texts(
        facts
    )


def test_words_that_the_kernel_does_not_take(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-6.1-bad-words"))
    assert facts.unknown_parameters == ["foo=a b\\c", "thp=x"]
    assert huge_page_texts(facts)[:3] == [
        "HugeTLB: Invalid hugepages parameter abc",
        "HugeTLB: unsupported hugepagesz=3M",
        "HugeTLB: hugepages=5 does not follow a valid hugepagesz, ignoring",
    ]


def test_default_size_of_1g(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-6.1-over-ask"))
    assert facts.meminfo["Hugepagesize"] == GIB
    assert facts.unknown_parameters == []
    memory_map = facts.memory_map
    assert memory_map is not None
    assert memory_map.system_ram == (Span(0x1000, 0x9FC00), Span(0x100000, 0x3FFE0000))
    assert memory_map.kernel == {
        "code": Span(0x27000000, 0x27E01EF2),
        "rodata": Span(0x28000000, 0x28827000),
        "data": Span(0x28A00000, 0x28C45E00),
        "bss": Span(0x292B1000, 0x29800000),
    }
    # the nested one inside the PCI window counts as well
    assert Span(0xB0000000, 0xC0000000) in memory_map.reserved


def test_cma_and_sizes_of_thp(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-7.2-cma"))
    observations = facts.observations()
    assert facts.version.major == 7
    assert observations["vm/hugetlb_optimize_vmemmap"] == 1
    assert (observations["meminfo/CmaTotal"], observations["meminfo/CmaFree"]) == (0, 0)
    assert "cma: Failed to reserve 1024 MiB" in huge_page_texts(facts)
    assert observations["transparent_hugepage/hugepages-64kB/enabled"] == "always"
    # with thp_anon= given, the largest size no longer inherits
    assert observations["transparent_hugepage/hugepages-2048kB/enabled"] == "never"
    assert observations["transparent_hugepage/hugepages-2048kB/shmem_enabled"] == "inherit"
    assert "transparent_hugepage/hugepages-8kB/enabled" not in observations
    assert observations["transparent_hugepage/hugepages-8kB/shmem_enabled"] == "never"
    assert facts.thp is not None
    assert [size.size for size in facts.thp.sizes] == [KIB << order for order in range(3, 12)]
    assert facts.thp.sizes[1].stats["anon_fault_fallback"] == 0


def test_gigantic_pages_in_a_cma_area(capture: Capture) -> None:
    facts = read_facts(capture("x86_64-max-7.3-cma-only"))
    assert facts.observations()["meminfo/CmaTotal"] == 2 * GIB
    assert "hugetlb_cma: reserved 2048 MiB on node 0" in huge_page_texts(facts)
    # small sizes alone start khugepaged
    assert facts.observations()["process/khugepaged"] == "running"


def test_thp_before_it_had_sizes(capture: Capture) -> None:
    thp = read_facts(capture("x86_64-max-6.1-nodes")).thp
    assert thp is not None
    assert thp.sizes == ()
    assert (thp.enabled, thp.defrag, thp.shmem_enabled) == ("always", "madvise", "never")
    assert thp.selections["shmem_enabled"].allowed == ("always", "within_size", "advise", "never", "deny", "force")
    assert (thp.numbers["use_zero_page"], thp.hpage_pmd_size, thp.hugetext_enabled) == (1, 2 * MIB, None)
    assert thp.khugepaged["max_ptes_none"] == 511


def test_arm64(capture: Capture) -> None:
    facts = read_facts(capture("aarch64-max-6.1-nodes"))
    observations = facts.observations()
    assert facts.architecture == "aarch64"
    assert observations["hugepages-1048576kB/demote_size"] == 32 * MIB
    assert observations["hugepages-32768kB/demote_size"] == 2 * MIB
    assert observations["hugepages-2048kB/demote_size"] == 64 * KIB
    assert "hugepages-64kB/demote_size" not in observations
    assert (observations["meminfo/CmaTotal"], observations["meminfo/CmaFree"]) == (65536 * KIB, 64000 * KIB)
    assert facts.early_ranges == {0: (Span(0x40000000, 0xC0000000),), 1: (Span(0xC0000000, 0x140000000),)}
    assert facts.initrd == ()
    assert facts.memory_map is not None
    assert facts.memory_map.system_ram == (Span(0x40000000, 0xC0000000), Span(0xC0000000, 0x140000000))
    assert facts.memory_map.kernel == {
        "code": Span(0x40210000, 0x41860000),
        "data": Span(0x41EB0000, 0x42210000),
    }
    assert Span(0x48000000, 0x481C4000) in facts.memory_map.reserved


def test_powerpc_with_hash(capture: Capture) -> None:
    facts = read_facts(capture("ppc64le-power8-6.1-plain"))
    assert facts.architecture == "ppc64le"
    assert facts.thp is not None
    assert (facts.thp.hpage_pmd_size, facts.thp.khugepaged["max_ptes_none"]) == (16 * MIB, 255)
    assert facts.initrd == (Span(0x2C90000, 0x2EF3E00),)
    assert facts.memory_map is not None
    assert (facts.memory_map.system_ram, facts.memory_map.kernel) == ((Span(0, 0x80000000),), {})
    assert facts.observations()["meminfo/Hugetlb"] == 131072 * KIB


def test_powerpc_with_radix(capture: Capture) -> None:
    facts = read_facts(capture("ppc64le-power9-6.1-nodes"))
    assert facts.early_ranges == {0: (Span(0, 0x80000000),), 1: (Span(0x80000000, 0x100000000),)}
    assert facts.thp is not None
    assert (facts.thp.hpage_pmd_size, facts.thp.khugepaged["max_ptes_none"]) == (2 * MIB, 31)


def test_s390_without_edat(capture: Capture) -> None:
    facts = read_facts(capture("s390x-max-6.1-plain"))
    assert facts.architecture == "s390x"
    assert facts.thp is None
    assert facts.vm == {}
    assert "Hugepagesize" not in facts.meminfo
    # this kernel has no NUMA
    assert facts.nodes.online == ()
    assert facts.node_pools == {}
    assert facts.early_ranges == {0: (Span(0, 0x80000000),)}
    observations = facts.observations()
    assert observations["filesystems/hugetlbfs"] == "absent"
    assert observations["process/khugepaged"] == "absent"
    assert huge_page_texts(facts) == [
        "HugeTLB: unsupported hugepagesz=1M",
        "HugeTLB: hugepages=8 does not follow a valid hugepagesz, ignoring",
    ]


def test_zones_of_two_nodes(capture: Capture) -> None:
    zones = {(zone.node, zone.name): zone for zone in read_facts(capture("x86_64-max-7.2-nodes")).zones}
    assert len(zones) == 10
    low, high = zones[0, "DMA32"], zones[1, "Normal"]
    assert (low.start_pfn, low.spanned, low.present) == (4096, 520160, 520160)
    assert (high.start_pfn, high.spanned, high.present) == (1048576, 524288, 524288)
    assert zones[1, "DMA"].start_pfn is None


@pytest.mark.parametrize(
    ("name", "zones", "orders"),
    [
        ("x86_64-max-7.2-nodes", [(0, "DMA"), (0, "DMA32"), (1, "Normal")], 11),
        # nine orders of 64K pages: the largest block is 16M
        ("ppc64le-power8-6.1-plain", [(0, "Normal")], 9),
        ("s390x-max-6.1-plain", [(0, "DMA")], 11),
    ],
)
def test_free_blocks(capture: Capture, name: str, zones: list[tuple[int, str]], orders: int) -> None:
    blocks = read_facts(capture(name)).free_blocks
    assert [(block.node, block.zone) for block in blocks] == zones
    assert {len(block.counts) for block in blocks} == {orders}
