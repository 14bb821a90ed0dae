"""What is counted on a machine, by the program itself on this one, and on machines that nobody boots."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.bench.counted_machines import FILES, CountedMachine, Lengths

from hugepage_qa.bench.path_length import (
    OPERATIONS,
    SOURCE,
    BootPaths,
    Pages,
    choose,
    count_paths,
    counted_machine,
    pages_of,
    request,
)
from hugepage_qa.errors import InputError
from hugepage_qa.process.actor_link import ActorLink, start_link
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.sizes import GIB, MIB

KERNEL = KernelImage(Path("vmlinuz"), "x86_64", "6.12.5", None)


def counted(lengths: Lengths | None = None, files: dict[str, bytes] = FILES) -> tuple[CountedMachine, BootPaths]:
    """Return a machine whose paths are as long as told, and what was counted on it."""
    machine = CountedMachine(counted_machine(KERNEL, 1), lengths or {}, files)
    return machine, count_paths(machine)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActorLink]:
    with start_link(build_program(SOURCE, tmp_path_factory.mktemp("program"))) as link:
        yield link


@pytest.mark.parametrize("operation", ["fault", "unmap", "fork", "copy", "move", "table"])
def test_the_program_times_each_round(program: ActorLink, operation: str) -> None:
    page = os.sysconf("SC_PAGESIZE")
    kind, *times = program.request(f"{operation} base {page} 64 0 5")[0].split()
    assert kind == "ok"
    assert len(times) == 5
    assert all(int(time) > 0 for time in times)


def test_what_the_kernel_refuses_is_an_error_number(program: ActorLink) -> None:
    assert program.request("fault hugetlb 3145728 1 1 5")[0] == f"errno {errno.ENOENT}"


@pytest.mark.parametrize("text", ["fault", "nothing base 4096 1 0 5", "fault base 4096 1 0 100000"])
def test_a_request_that_is_none(program: ActorLink, text: str) -> None:
    assert program.request(text)[0] == "malformed"


def test_a_child_that_copies_leaves_the_program_to_its_parent(program: ActorLink) -> None:
    page = os.sysconf("SC_PAGESIZE")
    assert program.request(f"copy base {page} 1 0 3")[0].startswith("ok ")
    assert program.request(f"fault base {page} 1 0 3")[0].startswith("ok ")


def test_all_kinds_of_pages_are_counted() -> None:
    machine, paths = counted()
    assert list(pages_of(machine, 4096)) == [  # type: ignore[arg-type]
        Pages("base", 4096, 512),
        Pages("thp", 2 * MIB, 4),
        Pages("thp", 65536, 16),
        Pages("hugetlb", GIB, 1),
        Pages("hugetlb", 2 * MIB, 4),
    ]
    assert {name.partition("-")[0] for name in paths.lengths} == {one.name for one in OPERATIONS}
    assert {name.partition("-")[2] for name in paths.lengths} == {
        "base-4K",
        "thp-2M",
        "thp-64K",
        "hugetlb-1G",
        "hugetlb-2M",
    }
    assert not paths.missing
    assert machine.written["/sys/kernel/mm/transparent_hugepage/enabled"] == b"madvise"


def test_the_kernel_is_let_be_done_with_its_boot_first() -> None:
    machine, paths = counted()
    first, *others = machine.requests
    assert first == "rest 20"
    assert others[::2] == ["rest 1"] * len(paths.lengths)


def test_a_rest_is_answered(program: ActorLink) -> None:
    assert program.request("rest 0")[0] == "ok"


def test_what_takes_minutes_or_is_not_there_is_left_out() -> None:
    names = {f"{operation.name}-{pages.name}" for operation, pages in choose([Pages("hugetlb", GIB, 1)])}
    assert names == {f"{name}-hugetlb-1G" for name in ("fault", "unmap", "reserve", "grow", "shrink")}
    assert {operation.name for operation, _pages in choose([Pages("thp", 65536, 16)])} >= {"fault", "split"}
    assert "collapse" not in {operation.name for operation, _pages in choose([Pages("thp", 65536, 16)])}
    _machine, paths = counted(files={})
    assert {name.partition("-")[2] for name in paths.lengths} == {"base-4K", "hugetlb-1G", "hugetlb-2M"}


@pytest.mark.parametrize(
    ("name", "pages", "text"),
    [
        ("fault", Pages("base", 4096, 512), "fault base 4096 512 0 25"),
        ("copy", Pages("hugetlb", 2 * MIB, 4), "copy hugetlb 2097152 4 8 25"),
        ("grow", Pages("hugetlb", 2 * MIB, 4), "grow hugetlb 2097152 4 0 25"),
        ("collapse", Pages("thp", 2 * MIB, 4), "collapse base 2097152 4 0 25"),
        ("fault", Pages("hugetlb", GIB, 1), "fault hugetlb 1073741824 1 1 3"),
        ("reserve", Pages("hugetlb", GIB, 1), "reserve hugetlb 1073741824 1 1 25"),
    ],
)
def test_the_pool_has_what_an_operation_needs(name: str, pages: Pages, text: str) -> None:
    (operation,) = (one for one in OPERATIONS if one.name == name)
    assert request(operation, pages) == text


def test_lengths_are_those_of_one_page() -> None:
    _machine, paths = counted({"fault base 4096": 3350})
    assert all(3350 <= one < 3351 for one in paths.lengths["fault-base-4K"])


def test_what_the_kernel_does_not_do_is_missing_with_its_reason() -> None:
    _machine, paths = counted({"collapse base 2097152": OSError(errno.EINVAL, "")})
    assert paths.missing == {"collapse-thp-2M": "Invalid argument"}
    assert "collapse-thp-2M" not in paths.lengths


def test_a_program_that_ends_is_told() -> None:
    with pytest.raises(InputError, match=r"path_length\.c ended at 'copy base 4096 512 0 25'"):
        counted({"copy base 4096": -1})


def test_a_time_of_nothing_is_no_time() -> None:
    with pytest.raises(InputError, match=r"path_length\.c answers 'ok 1 2 .* to 'fault base 4096 512 0 25'"):
        counted({"fault base 4096": 0})


def test_the_clock_of_the_machine_counts_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hugepage_qa.qemu.virtual_machine.find_emulator", lambda _board: "qemu")
    monkeypatch.setattr("hugepage_qa.qemu.virtual_machine.expect_offered", lambda _emulator, _arguments: None)
    words = " ".join(counted_machine(KERNEL, 7, "quiet").qemu_command(Path("initramfs")))
    assert "-icount shift=0,sleep=off -rtc clock=vm,base=2026-01-01T00:00:00 -seed 7 " in words
    assert words.endswith("init_on_alloc=0 norandmaps oops=panic quiet")


def test_an_architecture_without_nodes_has_one() -> None:
    kernel = KernelImage(Path("vmlinuz"), "s390x", "6.12.5", None)
    assert counted_machine(kernel, 1).memory == (6 * GIB,)
