"""What is written before a block, on a machine of files: nothing happens there but what we do."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.conftest import load_capture

from hugepage_qa.bench.backing import Backing, Kind, ProgramText, choose_backings, find_backings, halved_backings
from hugepage_qa.bench.disturbances import Surroundings
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.sizes import GIB, MIB

THP = "sys/kernel/mm/transparent_hugepage"
BASE = Backing(Kind.BASE, 4096)
POOLS = "sys/kernel/mm/hugepages"


KHUGEPAGED = {"scan_sleep_millisecs": "10000", "alloc_sleep_millisecs": "60000", "pages_to_scan": "4096"}


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a machine with 8 GiB, THP of two sizes, 3 pages of 2 MiB (one reserved), and 2 of 1 GiB."""
    pool = {"nr_hugepages": "3", "free_hugepages": "3", "resv_hugepages": "1", "surplus_hugepages": "0"}
    large = {"nr_hugepages": "2", "free_hugepages": "2", "resv_hugepages": "0", "surplus_hugepages": "0"}
    write(tmp_path, {f"{POOLS}/hugepages-2048kB/{name}": value for name, value in pool.items()})
    write(tmp_path, {f"{POOLS}/hugepages-1048576kB/{name}": value for name, value in large.items()})
    for directory in (THP, f"{THP}/hugepages-64kB", f"{THP}/hugepages-2048kB"):
        mode = "always [madvise] never"
        write(tmp_path, {f"{directory}/enabled": mode, f"{directory}/shmem_enabled": mode})
    write(tmp_path, {f"{THP}/defrag": "always defer defer+madvise [madvise] never"})
    write(tmp_path, {f"{THP}/khugepaged/{name}": value for name, value in KHUGEPAGED.items()})
    write(tmp_path, {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 8388608 kB\n"})
    write(tmp_path, {"proc/sys/vm/drop_caches": "0", "proc/sys/vm/compact_memory": "0"})
    return tmp_path


def thp(root: Path) -> list[str]:
    places = (THP, f"{THP}/hugepages-64kB", f"{THP}/hugepages-2048kB")
    return [(root / place / name).read_text().strip() for place in places for name in ("enabled", "shmem_enabled")]


def nr_hugepages(root: Path, size: str) -> str:
    return (root / POOLS / f"hugepages-{size}" / "nr_hugepages").read_text().strip()


def test_thp_alone_has_transparent_pages_of_its_size(root: Path) -> None:
    surroundings = Surroundings(root)
    with surroundings.of(Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True), GIB):
        assert thp(root) == ["always", "always", "never", "never", "inherit", "inherit"]
    for other in (Backing(Kind.BASE, 4096), Backing(Kind.STATIC, 2 * MIB)):
        with surroundings.of(other, 2 * MIB):
            assert thp(root) == ["never"] * 6


def test_a_smaller_size_alone(root: Path) -> None:
    with Surroundings(root).of(Backing(Kind.TRANSPARENT, 65536), GIB):
        assert thp(root) == ["always", "always", "inherit", "inherit", "never", "never"]


def test_each_configuration_has_its_mode_of_defrag(root: Path) -> None:
    usual = Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
    surroundings = Surroundings(root)
    for backing, mode in ((replace(usual, defrag="defer"), "defer"), (usual, "madvise"), (BASE, "madvise")):
        with surroundings.of(backing, GIB):
            assert (root / THP / "defrag").read_text().strip() == mode


def test_each_configuration_has_its_mode_of_shared_memory(root: Path) -> None:
    usual = Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
    surroundings = Surroundings(root)
    for backing, mode in ((replace(usual, shmem="within_size"), "within_size"), (usual, "always"), (BASE, "never")):
        with surroundings.of(backing, GIB):
            assert (root / THP / "shmem_enabled").read_text().strip() == mode


def test_hugetext_in_each_mode(root: Path) -> None:
    write(root, {f"{THP}/hugetext_enabled": "3", f"{THP}/hugetext_pad_threshold": "0"})
    surroundings = Surroundings(root)

    def found() -> tuple[str, ...]:
        names = ("hugetext_enabled", "hugetext_pad_threshold", "khugepaged/pages_to_scan")
        return tuple((root / THP / name).read_text().strip() for name in names)

    wanted = {
        None: ("0", "0", "4096"),
        ProgramText.COLLAPSED: ("0", "0", "4096"),
        ProgramText.HUGETEXT_1: ("1", "0", "65536"),
        ProgramText.HUGETEXT_2: ("2", "0", "65536"),
        ProgramText.HUGETEXT_3: ("3", "0", "65536"),
        ProgramText.HUGETEXT_3_PADDED: ("3", "4096", "65536"),
    }
    for text in (*wanted, None):
        with surroundings.of(replace(BASE, text=text), GIB):
            assert found() == wanted[text]


def test_a_kernel_without_hugetext(root: Path) -> None:
    surroundings = Surroundings(root)
    with surroundings.of(replace(BASE, text=ProgramText.COLLAPSED), GIB):
        assert not (root / THP / "hugetext_enabled").exists()
    with (
        pytest.raises(Unavailable, match="this kernel has no hugetext"),
        surroundings.of(replace(BASE, text=ProgramText.HUGETEXT_1), GIB),
    ):
        pytest.fail("it ran without hugetext")


def test_two_guests_at_the_same_time_have_both(root: Path) -> None:
    transparent, static = Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True), Backing(Kind.STATIC, 2 * MIB)
    write(root, {f"{POOLS}/hugepages-2048kB/nr_hugepages": "3"})
    surroundings = Surroundings(root)
    for one, other in ((transparent, static), (static, transparent)):
        with surroundings.of(replace(one, beside=other), 4 * MIB):
            assert thp(root) == ["always", "always", "never", "never", "inherit", "inherit"]
        with (
            pytest.raises(Unavailable, match="gave 0 of 2 pages of 2M"),
            surroundings.of(replace(one, beside=other), 8 * MIB),
        ):
            pytest.fail("it ran without its pages")


def test_caches_are_dropped_and_memory_is_compacted(root: Path) -> None:
    with Surroundings(root).of(Backing(Kind.BASE, 4096), GIB):
        assert (root / "proc/sys/vm/drop_caches").read_text() == "3\n"
        assert (root / "proc/sys/vm/compact_memory").read_text() == "1\n"


def test_unused_pages_are_enough(root: Path) -> None:
    with Surroundings(root).of(Backing(Kind.STATIC, 2 * MIB), 4 * MIB):
        assert nr_hugepages(root, "2048kB") == "3"
    assert nr_hugepages(root, "2048kB") == "3"


def test_half_of_the_pages_are_taken_away(root: Path) -> None:
    (halved,) = halved_backings([Backing(Kind.STATIC, 2 * MIB), Backing(Kind.STATIC, GIB), Backing(Kind.BASE, 4096)])
    assert halved.name == "shp-2M/2"
    # two are unused: a workload that needs two gets one, beside the one that is reserved
    with Surroundings(root).of(halved, 4 * MIB):
        assert nr_hugepages(root, "2048kB") == "2"
    assert nr_hugepages(root, "2048kB") == "3"


def test_a_kernel_that_gives_no_pages(root: Path) -> None:
    surroundings = Surroundings(root)
    # one of the three is promised to somebody
    with (
        pytest.raises(Unavailable, match="gave 0 of 1 pages of 2M"),
        surroundings.of(Backing(Kind.STATIC, 2 * MIB), 6 * MIB),
    ):
        pytest.fail("it ran without its pages")
    assert nr_hugepages(root, "2048kB") == "3"


def test_more_than_there_is(root: Path) -> None:
    with pytest.raises(Unavailable, match="too much"), Surroundings(root).of(Backing(Kind.STATIC, GIB), 9 * GIB):
        pytest.fail("it ran without its pages")
    assert nr_hugepages(root, "1048576kB") == "2"


MEMINFO = "Hugepagesize: 2048 kB\n"
MACHINE = {
    "proc/self/smaps": "00400000-00452000 r-xp 00000000 08:02 173521 /bin/x\nKernelPageSize:        4 kB\n",
    "proc/meminfo": MEMINFO,
    f"{THP}/enabled": "always [madvise] never",
    f"{THP}/hpage_pmd_size": "2097152",
    f"{THP}/defrag": "always defer [madvise] never",
    f"{THP}/shmem_enabled": "always within_size advise [never] deny force",
    # two base pages are no page of anonymous memory
    f"{THP}/hugepages-8kB/shmem_enabled": "always [never]",
    f"{THP}/hugepages-64kB/enabled": "always inherit madvise [never]",
    f"{THP}/hugepages-2048kB/enabled": "always [inherit] madvise never",
    **{f"{POOLS}/hugepages-{size}kB/nr_hugepages": "0" for size in (64, 2048, 32768, 1048576, 16777216)},
}


def names(files: dict[str, str], *asked: str) -> list[str]:
    return [one.name for one in choose_backings(find_backings(CapturedTree(files)), asked)]


def test_configurations() -> None:
    assert names(MACHINE) == ["4k", "thp", "shp-2M", "shp-1G"]
    assert names(MACHINE, "shp-64K", "thp") == ["thp", "shp-64K"]
    others = ("thp-64K", "thp-defrag-always", "thp-defrag-never", "thp-shmem-within_size", "thp-shmem-force")
    assert set(names(MACHINE, *others)) == set(others)
    without_thp = {path: text for path, text in MACHINE.items() if not path.startswith(THP)}
    assert names(without_thp) == ["4k", "shp-2M", "shp-1G"]
    with pytest.raises(
        InputError, match="shp-4M: expected one that this machine has: 4k, thp, thp-64K, thp-defrag-always"
    ):
        names(MACHINE, "shp-4M")


@pytest.mark.parametrize("capture", ["aarch64-max-7.2-plain"])
def test_configurations_of_a_real_machine(capture: str) -> None:
    found = find_backings(load_capture(capture))
    assert found[0].kind is Kind.BASE
    assert [one for one in found if one.is_default]
