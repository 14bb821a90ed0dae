"""Text of programs on pages of each kind: its figures, and what a kernel has to have for a configuration."""

from pathlib import Path

import pytest

from hugepage_qa.bench import text_access
from hugepage_qa.bench.backing import Backing, Kind, ProgramText, choose_backings
from hugepage_qa.bench.benchmark_program import run_program
from hugepage_qa.bench.page_access import PageAccess
from hugepage_qa.bench.text_access import TextAccess, build_text, parse_text_access
from hugepage_qa.bench.workload import Unavailable
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

BASE = Backing(Kind.BASE, 4096)
COUNTED = "call-ns 4000 huge-kB 2048 misses 30 accesses 600 instructions 10000\n"
NOT_COUNTED = "call-ns 4000 huge-kB 0 misses n/a accesses n/a instructions n/a\n"


def test_figures() -> None:
    assert parse_text_access(COUNTED * 2, 1000, 2) == {
        "text-access": [4],
        "text-access-huge": [2048],
        "text-access-itlb-mpki": [3],
        "text-access-itlb-miss-rate": [5],
    }
    assert set(parse_text_access(NOT_COUNTED * 2, 1000, 2)) == {"text-access", "text-access-huge"}


@pytest.mark.parametrize("output", ["", COUNTED, COUNTED + COUNTED.replace("4000", "0"), COUNTED * 2 + "x"])
def test_broken_figures(output: str) -> None:
    with pytest.raises(InputError, match="text_access"):
        parse_text_access(output, 1000, 2)


def test_configurations() -> None:
    there = [BASE, Backing(Kind.STATIC, 2 * MIB)]
    names = [one.name for one in TextAccess().configurations(there)]
    assert names == ["4k", "text-thp", "hugetext-1", "hugetext-2", "hugetext-3", "hugetext-3-padded"]
    chosen = choose_backings(there, ["hugetext-3", "4k"])
    assert [one.name for one in TextAccess().configurations(chosen)] == ["4k", "hugetext-3"]
    assert [one.name for one in PageAccess().configurations(chosen)] == ["4k"]
    assert PageAccess().configurations(choose_backings(there, ["hugetext-1"])) == ()
    assert [one.mode for one in ProgramText] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("text", "huge", "refused"),
    [
        (None, 0, False),
        (None, 2048, True),
        (ProgramText.HUGETEXT_1, 12288, False),
        (ProgramText.HUGETEXT_1, 2048, True),
        (ProgramText.HUGETEXT_2, 0, False),
        (ProgramText.HUGETEXT_2, 12288, True),
        (ProgramText.HUGETEXT_3, 14336, False),
    ],
)
def test_a_block_has_the_pages_that_it_is_called_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: ProgramText | None, huge: int, refused: bool
) -> None:
    line = NOT_COUNTED.replace("huge-kB 0", f"huge-kB {huge}")
    monkeypatch.setattr(text_access, "run_program", lambda *_words, **_options: line * 3)
    parameters = {"bytes": 16 * MIB, "calls": 10, "samples": 2}

    def block() -> object:
        return text_access._block(tmp_path, text, parameters, 2 * MIB)

    if refused:
        with pytest.raises(Unavailable, match="of 16M of text huge"):
            block()
    else:
        assert block()


def test_the_program_prints_what_is_read(tmp_path: Path) -> None:
    program = build_text(tmp_path, MIB, 2 * MIB)
    output = run_program([program, "256", "1000", "2", str(2 * MIB), "0"], deadline=60)
    assert parse_text_access(output, 1000, 2)["text-access-huge"] == [0]
