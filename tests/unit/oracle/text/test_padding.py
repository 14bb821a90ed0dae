"""Padding and merging with the numbers that were measured on a 5.10 kernel: a tail of 1830912 bytes."""

from dataclasses import replace

import pytest

from hugepage_qa.oracle.program_text import (
    Clearing,
    ElfFile,
    Kind,
    Segment,
    TextMapping,
    Unpadded,
    becomes_huge,
    is_placed_for_huge_pages,
    map_text,
    stays_huge,
    tail,
    why_unpadded,
)
from hugepage_qa.sizes import KIB

PMD = 2 << 20
PAGE = 4096
BIAS = 0x555555400000
TAIL = 1830912
TEXT = Segment(PMD, PMD, 3 * PMD + TAIL - 100, PMD, executable=True)
DATA = Segment(5 * PMD, 5 * PMD, 8192, PMD, executable=False)
HEADERS = Segment(0, 0, 2048, PMD, executable=False)
FILE = ElfFile(Kind.PIE, (HEADERS, TEXT, DATA), 5 * PMD + 8192)


def changed(*, text: Segment = TEXT, data: Segment = DATA, **named: object) -> ElfFile:
    return replace(FILE, segments=(HEADERS, text, data), **named)  # type: ignore[arg-type]


def reason(
    file: ElfFile = FILE, *, mode: int = 1, threshold: int = PAGE, bias: int = BIAS, index: int = 1
) -> Unpadded | None:
    return why_unpadded(file, index, mode=mode, threshold=threshold, pmd=PMD, base_page=PAGE, bias=bias)


def huge_kib(threshold: int, file: ElfFile = FILE, mode: int = 1) -> int:
    (mapping,) = map_text(file, bias=BIAS, mode=mode, threshold=threshold, pmd=PMD, base_page=PAGE)
    return becomes_huge(mapping, file, mode=mode, pmd=PMD) // KIB


def test_the_tail_is_rounded_to_base_pages() -> None:
    assert tail(FILE, 1, pmd=PMD, base_page=PAGE) == TAIL


@pytest.mark.parametrize("threshold", [1, 4096, 1830911, 1830912])
def test_a_tail_of_at_least_the_threshold_is_padded(threshold: int) -> None:
    assert huge_kib(threshold) == 8192


@pytest.mark.parametrize("threshold", [0, 1830913, 2097151])
def test_a_smaller_tail_is_not(threshold: int) -> None:
    assert huge_kib(threshold) == 6144


def test_mode_3_pads_and_mode_2_neither_pads_nor_merges() -> None:
    assert huge_kib(PAGE, mode=3) == 8192
    assert reason(mode=2) is Unpadded.SWITCHED_OFF
    assert huge_kib(PAGE, mode=2) == 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (changed(kind=Kind.LIBRARY), Unpadded.NOT_A_MAIN_PROGRAM),
        (changed(kind=Kind.STATIC_PIE), Unpadded.NOT_A_MAIN_PROGRAM),
        (changed(kind=Kind.FIXED), None),
        (changed(text=replace(TEXT, executable=False)), Unpadded.NO_TEXT),
        (changed(text=replace(TEXT, alignment=PAGE)), Unpadded.ALIGNMENT),
        (changed(data=replace(DATA, alignment=PAGE)), Unpadded.NEXT_ALIGNMENT),
        (changed(text=replace(TEXT, size=3 * PMD)), Unpadded.NO_TAIL),
        (changed(text=replace(TEXT, address=TEXT.address + PMD // 2, size=PMD // 4)), Unpadded.NO_TAIL),
        (changed(size=TEXT.offset + TEXT.size), Unpadded.END_OF_FILE),
        (changed(size=TEXT.offset + TEXT.size + PMD), None),
        (replace(FILE, segments=(HEADERS, TEXT)), None),
    ],
)
def test_every_condition_is_needed(file: ElfFile, expected: Unpadded | None) -> None:
    assert reason(file) is expected


def test_a_bias_off_a_huge_page_pads_nothing() -> None:
    assert reason(bias=BIAS + PAGE) is Unpadded.BIAS


def test_thresholds_differ_by_whole_pages_only() -> None:
    small = changed(text=replace(TEXT, size=3 * PMD + 2 * PAGE))
    padded = [threshold for threshold in (1, 4096, 4097, 8192, 8193) if reason(small, threshold=threshold) is None]
    assert padded == [1, 4096, 4097, 8192]


@pytest.mark.parametrize(
    ("mapping", "size", "expected"),
    [
        (TextMapping(0, 2 * PMD, 0), 2 * PMD, 2 * PMD),
        (TextMapping(PAGE, 2 * PMD + PAGE, PAGE), 4 * PMD, PMD),
        (TextMapping(PAGE, 2 * PMD, 0), 4 * PMD, 0),
        (TextMapping(0, 2 * PMD, 0), 2 * PMD - 1, PMD),
        (TextMapping(PAGE, PMD, PAGE), 4 * PMD, 0),
    ],
    ids=["whole", "head and tail stay", "not congruent", "file ends", "less than one"],
)
def test_only_whole_congruent_blocks_within_the_file_merge(mapping: TextMapping, size: int, expected: int) -> None:
    assert becomes_huge(mapping, replace(FILE, size=size), mode=1, pmd=PMD) == expected


@pytest.mark.parametrize(
    ("file", "mode", "expected"),
    [
        (FILE, 1, True),
        (FILE, 2, False),
        (changed(kind=Kind.LIBRARY), 1, True),
        (changed(kind=Kind.LIBRARY, runnable=False), 1, False),
        (changed(kind=Kind.STATIC_PIE), 3, False),
        (changed(kind=Kind.FIXED), 3, False),
    ],
)
def test_the_kernel_places_what_it_can_move(file: ElfFile, mode: int, expected: bool) -> None:
    assert is_placed_for_huge_pages(file, mode, PMD) is expected


@pytest.mark.parametrize(
    ("clearing", "of_mapped", "of_unmapped"),
    [
        (Clearing.SWITCH_OFF, True, True),
        (Clearing.DROP_CACHES, True, False),
        (Clearing.EVICT_FILE, True, False),
        (Clearing.SPLIT, False, False),
        (Clearing.OPEN_FOR_WRITE, False, False),
    ],
)
def test_what_each_way_to_clear_leaves(clearing: Clearing, of_mapped: bool, of_unmapped: bool) -> None:
    assert stays_huge(clearing, mapped=True) is of_mapped
    assert stays_huge(clearing, mapped=False) is of_unmapped
