"""The mappings of a process."""

import os
from collections import Counter
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernel.process_capture import CHILD, HOLDER, KTHREADD, processes, text_of

from hugepage_qa.errors import InputError
from hugepage_qa.kernel import smaps
from hugepage_qa.kernel.smaps import parse_huge_mappings, parse_smaps, read_smaps, read_smaps_rollup
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree
from hugepage_qa.sizes import GIB, KIB, MIB

BASE = 4 * KIB
HEADER = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n"
SIZES = "Size: 2048 kB\nKernelPageSize: 4 kB\nMMUPageSize: 4 kB\nRss: 0 kB\nAnonHugePages: 0 kB\n"


def test_every_kind_of_huge_page() -> None:
    mappings = read_smaps(processes(), HOLDER)
    assert mappings is not None
    huge = [mapping for mapping in mappings if mapping.has_huge_pages(BASE)]
    assert [(m.kernel_page_size, m.size, m.private_hugetlb, m.shared_hugetlb) for m in huge] == [
        (GIB, GIB, 0, GIB),
        (2 * MIB, 4 * MIB, 2 * MIB, 0),
        (BASE, 12 * MIB, 0, 0),
        (BASE, 8 * MIB, 0, 0),
        (2 * MIB, 4 * MIB, 0, 2 * MIB),
        (2 * MIB, 8 * MIB, 0, 4 * MIB),
    ]
    assert [(m.anon_huge_pages, m.shmem_pmd_mapped, m.file_pmd_mapped) for m in huge[2:4]] == [
        (12 * MIB, 0, 0),
        (0, 8 * MIB, 0),
    ]
    assert [m.is_hugetlb for m in huge] == [True, True, False, False, True, True]
    assert [m.is_shared for m in huge] == [False, True, False, True, True, False]


def test_every_part_of_a_mapping() -> None:
    memfd = next(mapping for mapping in parse_smaps(text_of(f"proc/{HOLDER}/smaps"), "x") if "memfd" in mapping.path)
    assert (memfd.start, memfd.end) == (0x7F432EA00000, 0x7F432F200000)
    assert (memfd.permissions, memfd.offset, memfd.device, memfd.inode) == ("rw-s", 0, "00:01", 4360)
    # the kernel escapes newlines alone
    assert memfd.path == "/memfd:a name\rof a memfd (deleted)"
    assert (memfd.size, memfd.rss, memfd.mmu_page_size) == (8 * MIB, 8 * MIB, BASE)
    assert memfd.flags == {"rd", "wr", "sh", "mr", "mw", "me", "ms", "hg"}
    assert memfd.thp_eligible is True
    assert memfd.fields["Pss_Dirty"] == 8 * MIB


def test_a_mapping_without_a_name_has_an_empty_path() -> None:
    (mapping,) = parse_smaps(HEADER + SIZES, "x")
    assert mapping.path == ""
    assert mapping.thp_eligible is None
    assert mapping.flags == frozenset()
    assert mapping.anon_huge_pages == 0


def test_rollup_is_the_sum_of_the_mappings() -> None:
    mappings, rollup = read_smaps(processes(), CHILD), read_smaps_rollup(processes(), CHILD)
    assert mappings is not None
    assert rollup is not None
    assert (rollup["AnonHugePages"], rollup["Shared_Hugetlb"]) == (10 * MIB, GIB + 6 * MIB)
    for name in ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"):
        assert rollup[name] == sum(mapping.fields[name] for mapping in mappings)
    assert "Size" not in rollup


def test_rollup_of_this_process() -> None:
    rollup = read_smaps_rollup(DirectoryTree(Path("/")))
    assert rollup is not None
    assert rollup["Rss"] > 0


def test_this_process_lies_where_the_kernel_says() -> None:
    mappings = read_smaps(DirectoryTree(Path("/")), os.getpid())
    assert mappings is not None
    starts = [mapping.start for mapping in mappings]
    assert starts == sorted(starts)
    assert all(mapping.end - mapping.start == mapping.size for mapping in mappings)
    assert mappings[0].kernel_page_size == os.sysconf("SC_PAGE_SIZE")


def test_other_architectures(any_capture: CapturedTree) -> None:
    """A probe machine prints the first mapping, without VmFlags; the base page is 64K on ppc64le."""
    mappings = read_smaps(any_capture)
    assert mappings is not None
    (mapping,) = mappings
    assert mapping.kernel_page_size in {4 * KIB, 64 * KIB}
    text = any_capture.read("proc/self/smaps") or ""
    assert parse_huge_mappings(text, "x", mapping.kernel_page_size) == ()
    assert parse_huge_mappings(text, "x", 2 * mapping.kernel_page_size) == (mapping,)


def test_no_such_process_and_kernel_threads() -> None:
    assert read_smaps(processes(), 1) is None
    assert read_smaps_rollup(processes(), 1) is None
    assert read_smaps(processes(), KTHREADD) == ()


def test_later_fields_are_kept_if_they_are_numbers() -> None:
    (mapping,) = parse_smaps(f"{HEADER}{SIZES}NewSize: 8 kB\nNewCount: 3\nNewWords: a b\n", "x")
    assert (mapping.fields["NewSize"], mapping.fields["NewCount"]) == (8 * KIB, 3)
    assert "NewWords" not in mapping.fields


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Rss: 4 kB\n", 1),
        ("7f0000000000 rw-p 00000000 00:00 0\n", 1),
        (HEADER.replace("rw-p", "rw--") + SIZES, 1),
        (HEADER.replace("7f0000200000", "7f0000000000") + SIZES, 1),
        (HEADER, 2),
        (f"{HEADER}\n{SIZES}", 2),
        (f"{HEADER}{SIZES}ShmemPmdMapped: x kB\n", 7),
        (f"{HEADER}{SIZES}ShmemPmdMapped: -4 kB\n", 7),
        (f"{HEADER}{SIZES}ShmemPmdMapped: 4 MB\n", 7),
        (f"{HEADER}{SIZES}ShmemPmdMapped: {'9' * 21} kB\n", 7),
        (f"{HEADER}{SIZES}Rss: 0 kB\n", 7),
        (f"{HEADER}{SIZES}no colon\n", 7),
        (HEADER + SIZES.replace("KernelPageSize: 4 kB\n", ""), 1),
        (f"{HEADER}{SIZES}{HEADER}Size: 2048 kB\n", 7),
        (f"{HEADER}{SIZES}THPeligible: perhaps\n", 7),
    ],
)
def test_malformed_line_is_named(text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"^/proc/7/smaps, line {line}: ") as error:
        read_smaps(CapturedTree({"proc/7/smaps": text}), 7)
    assert "\n" not in str(error.value)


def test_malformed_rollup_is_named() -> None:
    tree = CapturedTree({"proc/7/smaps_rollup": f"{HEADER}Rss: many\n"})
    with pytest.raises(InputError, match=r"^/proc/7/smaps_rollup, line 2: "):
        read_smaps_rollup(tree, 7)
    with pytest.raises(InputError, match=r"^/proc/7/smaps_rollup, line 1: "):
        read_smaps_rollup(CapturedTree({"proc/7/smaps_rollup": "Rss: 1 kB\n"}), 7)


# what the fast search and the parser must agree on: what kernels print, and all else that the parser takes

PLAIN = {
    **{"Size": 2048, "KernelPageSize": 4, "MMUPageSize": 4, "Rss": 4, "Pss": 4},
    **{"AnonHugePages": 0, "ShmemPmdMapped": 0, "FilePmdMapped": 0, "Shared_Hugetlb": 0, "Private_Hugetlb": 0},
}
HUGE = [name for name in PLAIN if "Huge" in name or "Mapped" in name or "Page" in name]
changes: st.SearchStrategy[dict[str, int]] = st.just({}) | st.dictionaries(
    st.sampled_from(HUGE), st.sampled_from([4, 64, 2048, 123456789]), max_size=2
)
paths = st.sampled_from(["", "[heap]", "/a b", "/\rKernelPageSize:     2048 kB", "/x AnonHugePages:  2048 kB", "/-f-"])
flags = st.sampled_from(["VmFlags: rd mr ", "VmFlags: rd wr sh mr mw me ms de ht sd "])


def header(number: int, path: str) -> str:
    return f"{number + 1:08x}000-{number + 2:08x}000 rw-p 00000000 00:00 0    {path}"


@st.composite
def kernel_texts(draw: st.DrawFn) -> str:
    """Texts of a kernel: the same lines in the same order in every mapping."""
    missing = draw(st.sampled_from(["", "", "", "FilePmdMapped"]))
    eligible = draw(st.sampled_from([[], ["THPeligible:    0"], ["THPeligible:           0"]]))
    mappings = []
    for number in range(draw(st.integers(0, 4))):
        fields = {**PLAIN, **draw(changes)}
        lines = [f"{name + ':':<16}{value:8} kB" for name, value in fields.items() if name != missing]
        mappings += [header(number, draw(paths)), *lines, *eligible, draw(flags)]
    return "".join(f"{line}\n" for line in mappings)


@st.composite
def odd_texts(draw: st.DrawFn) -> str:
    """Texts in any order, with any number of spaces, that not every kernel prints."""
    mappings = []
    for number in range(draw(st.integers(0, 4))):
        fields = {**PLAIN, **draw(changes)}
        lines = [f"{name}:{' ' * draw(st.integers(0, 9))}{value} kB" for name, value in fields.items()]
        mappings += [header(number, draw(paths)), *draw(st.permutations([*lines, draw(flags)]))]
    return "".join(f"{line}\n" for line in mappings)


@settings(max_examples=500)
@given(kernel_texts() | odd_texts(), st.sampled_from([4 * KIB, 64 * KIB]))
def test_fast_search_and_parser_agree(text: str, base: int) -> None:
    expected = tuple(mapping for mapping in parse_smaps(text, "x") if mapping.has_huge_pages(base))
    assert parse_huge_mappings(text, "x", base) == expected


@pytest.mark.parametrize("pid", [HOLDER, CHILD])
def test_fast_search_and_parser_agree_on_real_texts(pid: int) -> None:
    text = text_of(f"proc/{pid}/smaps")
    expected = tuple(mapping for mapping in parse_smaps(text, "x") if mapping.has_huge_pages(BASE))
    assert parse_huge_mappings(text, "x", BASE) == expected
    assert Counter(mapping.kernel_page_size for mapping in expected)[2 * MIB] == 3


def test_nothing_is_searched_or_parsed_in_a_usual_text_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 40 * text_of("proc/self/smaps")
    assert len(parse_smaps(text, "x")) == 40
    monkeypatch.setattr(smaps, "_huge_or_unusual", Mock(side_effect=AssertionError("it was searched")))
    monkeypatch.setattr(smaps, "_parse_mapping", Mock(side_effect=AssertionError("it was parsed")))
    assert parse_huge_mappings(text, "x", BASE) == ()


def test_before_linux_5_4_there_is_no_line_on_file_thp() -> None:
    text = text_of(f"proc/{HOLDER}/smaps").replace("FilePmdMapped:         0 kB\n", "")
    assert "FilePmdMapped" not in text
    assert len(parse_huge_mappings(text, "x", BASE)) == 6


def test_mappings_without_huge_pages_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(f"proc/{HOLDER}/smaps")
    assert len(parse_smaps(text, "x")) == 16
    parse = Mock(wraps=smaps._parse_mapping)
    monkeypatch.setattr(smaps, "_parse_mapping", parse)
    assert len(parse_huge_mappings(text, "x", BASE)) == parse.call_count == 6


def test_fast_search_names_the_line_too() -> None:
    text = text_of(f"proc/{HOLDER}/smaps").replace("Private_Hugetlb:    2048 kB", "Private_Hugetlb:    some kB")
    line = text[: text.index("some kB")].count("\n") + 1
    with pytest.raises(InputError, match=rf"^/p, line {line}: "):
        parse_smaps(text, "p")
    with pytest.raises(InputError, match=rf"^/p, line {line}: "):
        parse_huge_mappings(text, "p", BASE)


@given(
    st.text()
    | st.from_regex(r"[0-9a-f]{1,3}-[0-9a-f]{1,3} rw-p 0 00:00 0\n(\w{1,4}: [0-9]{1,3}( kB)?\n){0,3}", fullmatch=True)
)
def test_nothing_but_input_error(text: str) -> None:
    for parse in (parse_smaps, partial(parse_huge_mappings, base_page_size=BASE)):
        try:
            parse(text, "x")
        except InputError as error:
            assert "\n" not in str(error)
