"""The nodes that the pages of a process lie on."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kernel.process_capture import CHILD, HOLDER, processes

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.numa_maps import NumaMapping, parse_numa_maps, read_numa_maps
from hugepage_qa.kernel.smaps import read_smaps
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree
from hugepage_qa.sizes import GIB, KIB, MIB


def parse_line(line: str) -> NumaMapping:
    (mapping,) = parse_numa_maps(f"{line}\n", "proc/7/numa_maps")
    return mapping


def test_huge_pages_of_a_real_process() -> None:
    mappings = read_numa_maps(processes(), HOLDER)
    assert mappings is not None
    huge = [mapping for mapping in mappings if mapping.huge]
    assert [(mapping.page_size, dict(mapping.nodes)) for mapping in huge] == [
        (GIB, {0: 1}),
        (2 * MIB, {0: 1}),
        (2 * MIB, {0: 1}),
        (2 * MIB, {0: 2}),
    ]
    assert huge[-1].counts == {"anon": 2, "dirty": 2, "mapmax": 2}
    assert [mapping.path for mapping in huge[:2]] == ["/anon_hugepage (deleted)", "/SYSV00000000 (deleted)"]


def test_names_with_spaces_and_carriage_returns() -> None:
    mappings = read_numa_maps(processes(), HOLDER)
    assert mappings is not None
    (memfd,) = (mapping for mapping in mappings if "memfd" in mapping.path)
    assert memfd.path == "/memfd:a name\rof a memfd (deleted)"
    # transparent huge pages are counted as base pages
    assert (memfd.huge, memfd.page_size, memfd.nodes) == (False, 4 * KIB, {0: 8 * MIB // (4 * KIB)})


def test_untouched_mapping_has_no_pages() -> None:
    mappings = read_numa_maps(processes(), CHILD)
    assert mappings is not None
    (segment,) = (mapping for mapping in mappings if "SYSV" in mapping.path)
    assert (segment.huge, segment.page_size, segment.nodes) == (True, None, {})


@pytest.mark.parametrize(
    "policy",
    [
        "default",
        "bind:0-1",
        "prefer:1",
        "prefer (many):0,2",
        "prefer (many)=static:0",
        "interleave=static|balancing:0,2-3",
        "weighted interleave:0-1",
        "local",
        "unknown",
    ],
)
def test_every_policy(policy: str) -> None:
    mapping = parse_line(f"7f0000000000 {policy} heap anon=3 dirty=3 N0=1 N12=2 kernelpagesize_kB=64")
    assert mapping.policy == policy
    assert (mapping.nodes, mapping.page_size) == ({0: 1, 12: 2}, 64 * KIB)
    assert mapping.counts == {"anon": 3, "dirty": 3}
    assert parse_line(f"7f0000000000 {policy}").policy == policy


def test_later_words_are_kept_if_they_are_numbers() -> None:
    assert parse_line("7f0000000000 default new=4 word other=text").counts == {"new": 4}


def test_this_process_has_the_mappings_that_smaps_shows() -> None:
    tree = DirectoryTree(Path("/"))
    numa, mappings = read_numa_maps(tree, os.getpid()), read_smaps(tree, os.getpid())
    if numa is None:
        pytest.skip("kernel without CONFIG_NUMA")
    assert mappings is not None
    program = mappings[0].path
    assert program
    assert [m.start for m in numa if m.path == program] == [m.start for m in mappings if m.path == program]
    assert any(mapping.nodes for mapping in numa)


def test_no_such_process_and_kernel_threads() -> None:
    assert read_numa_maps(processes(), 1) is None
    assert read_numa_maps(CapturedTree({"proc/2/numa_maps": ""}), 2) == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "7f0000000000",
        "default anon=1",
        "7f0000000000  default",
        "7f0000000000 default anon=x",
        "7f0000000000 default anon=",
        "7f0000000000 default anon",
        "7f0000000000 default anon=-1",
        "7f0000000000 default N0=one kernelpagesize_kB=4",
        "7f0000000000 default N0=1",
        "7f0000000000 default N0=1 kernelpagesize_kB=0",
        "7f0000000000 default N0=1 N0=1 kernelpagesize_kB=4",
        f"7f0000000000 default anon={'9' * 21}",
    ],
)
def test_malformed_line_is_named(line: str) -> None:
    tree = CapturedTree({"proc/7/numa_maps": f"7f0000000000 default\n{line}\n"})
    with pytest.raises(InputError, match=r"^/proc/7/numa_maps, line 2: ") as error:
        read_numa_maps(tree, 7)
    assert "\n" not in str(error.value)


@given(st.text() | st.from_regex(r"([0-9a-f]{1,3} default( [a-zN0]{1,3}=[0-9]{1,2}){0,3}\n){0,3}", fullmatch=True))
def test_nothing_but_input_error(text: str) -> None:
    try:
        parse_numa_maps(text, "x")
    except InputError as error:
        assert "\n" not in str(error)
