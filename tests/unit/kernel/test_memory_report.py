"""Reports of memory in the kernel log are read as kernels print them."""

from hugepage_qa.kernel.memory_report import read_memory_report
from hugepage_qa.sizes import KIB

MACHINE = "active_anon:508 inactive_anon:0 isolated_anon:0\\x0a active_file:7 inactive_file:0 free:2785672 free_cma:0"
NEW_NODE = "Node 1 active_anon:20kB isolated(anon):4kB shmem_thp:2048kB anon_thp:0kB all_unreclaimable? no Balloon:0kB"
OLD_NODE = "Node 0 active_anon:20kB shmem_thp: 0kB shmem_pmdmapped: 0kB anon_thp: 4096kB all_unreclaimable? no"
ZONE = "Node 0 DMA32 free:13312kB boost:0kB reserved_highatomic:0KB present:15992kB managed:15360kB mlocked:8kB"
BLOCKS = "Node 0 DMA32: 0*4kB 2*8kB (UM) 1*16kB (E) = 32kB"
END = (
    "489 total pagecache pages",
    "3 pages in swap cache",
    "Free swap  = 4kB",
    "Total swap = 8kB",
    "2883445 pages RAM",
    "72931 pages reserved",
    "0 pages hwpoisoned",
)


def test_report_is_read() -> None:
    report = read_memory_report(("sysrq: Show Memory", "Mem-Info:", MACHINE, NEW_NODE, OLD_NODE, ZONE, BLOCKS, *END))
    assert report.machine == {
        "active_anon": 508,
        "inactive_anon": 0,
        "isolated_anon": 0,
        "active_file": 7,
        "inactive_file": 0,
        "free": 2785672,
        "free_cma": 0,
    }
    assert report.nodes[1] == {
        "active_anon": 20 * KIB,
        "isolated(anon)": 4 * KIB,
        "shmem_thp": 2048 * KIB,
        "anon_thp": 0,
    }
    assert report.nodes[0] == {"active_anon": 20 * KIB, "shmem_thp": 0, "shmem_pmdmapped": 0, "anon_thp": 4096 * KIB}
    assert report.zones[0, "DMA32"]["reserved_highatomic"] == 0
    assert report.zones[0, "DMA32"]["mlocked"] == 8 * KIB
    assert report.free_blocks == {(0, "DMA32"): ((0, 2, 1), 32 * KIB)}
    assert report.totals == {
        "pagecache pages": 489,
        "pages in swap cache": 3,
        "Free swap": 4 * KIB,
        "Total swap": 8 * KIB,
        "pages RAM": 2883445,
        "pages reserved": 72931,
        "pages hwpoisoned": 0,
    }


def test_zones_of_a_kernel_without_numa_are_of_node_0() -> None:
    of_zones = [line.removeprefix("Node 0 ") for line in (ZONE, BLOCKS)]
    report = read_memory_report((MACHINE, OLD_NODE, *of_zones, *END))
    assert report.zones[0, "DMA32"]["mlocked"] == 8 * KIB
    assert report.free_blocks == {(0, "DMA32"): ((0, 2, 1), 32 * KIB)}


def test_log_without_a_report() -> None:
    report = read_memory_report(("sysrq: This sysrq operation is disabled.",))
    assert not (report.machine or report.nodes or report.zones or report.free_blocks or report.totals)
