"""A guest that starts in fragmented memory, and one that builds: what is packed, asked for, and told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.bench.fake_guest import FakeHost

from hugepage_qa.bench import fragmented_memory, source_build
from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.fragmented_memory import SOURCE, GuestStart, fragmented
from hugepage_qa.bench.memory_program import MEMORY
from hugepage_qa.bench.source_build import GuestBuild, headers_of, parts_of, write_tree
from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import build_program
from hugepage_qa.sizes import GIB, MIB

BASE, THP = Backing(Kind.BASE, 4096), Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)
SHP, LARGE = Backing(Kind.STATIC, 2 * MIB, is_default=True), Backing(Kind.STATIC, GIB)


def test_a_start_beside_fragmented_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[int, int]] = []

    @contextmanager
    def noted(_program: Path, sizes: tuple[int, int], _ready: Path) -> Iterator[None]:
        asked.append(sizes)
        yield

    monkeypatch.setattr(fragmented_memory, "fragmented", noted)
    monkeypatch.setattr(fragmented_memory, "GuestHost", lambda *_: FakeHost({}))
    monkeypatch.setattr(fragmented_memory, "fragmented_and_used", lambda parts, left: (parts, left))
    assert GuestStart().backings([BASE, THP, SHP, LARGE]) == (BASE, THP, SHP)
    with GuestStart().prepare("quick", tmp_path, tmp_path) as ready:
        figures = ready.block(THP)
    assert figures == {"guest-start-memory": [2.5], "guest-start-boot": [9.0], "guest-start-huge": [0]}
    assert asked == [(4, 512 * MIB)]
    assert FakeHost.started == [("bench", "thp")]


def test_memory_is_fragmented_until_the_guest_has_started(tmp_path: Path) -> None:
    program, ready = build_program(SOURCE, tmp_path, [MEMORY]), tmp_path / "ready"
    with fragmented(program, (8 * MIB, 4 * MIB), ready):
        assert ready.exists()
    assert not ready.exists()


def test_memory_that_cannot_be_fragmented(tmp_path: Path) -> None:
    program = build_program(SOURCE, tmp_path, [MEMORY])
    with (
        pytest.raises(InputError, match="has not fragmented the memory"),
        fragmented(program, (8 * MIB, 1 << 62), tmp_path / "ready"),
    ):
        pytest.fail("there is not so much")


def test_a_build_in_a_guest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed: list[Path] = []

    def pack(programs: list[Path], _trees: list[Path]) -> bytes:
        packed.extend(programs)
        return b""

    monkeypatch.setattr(source_build, "program_archive", pack)
    monkeypatch.setattr(source_build, "GuestHost", lambda *_: FakeHost({}))
    monkeypatch.setattr(source_build, "page_tables_of", lambda _pid: 4 * MIB)
    with GuestBuild().prepare("quick", tmp_path, tmp_path) as ready:
        figures = ready.block(SHP)
    assert figures["guest-build"][0] > 0
    assert figures["guest-build-host-page-tables"] == [4096]
    assert {"cc1", "as", "stdio.h"} <= {path.name for path in packed}
    (command,) = FakeHost.typed["bench"]
    assert command.endswith("main.o part0.o part1.o")
    assert not list(tmp_path.glob("*source*"))


def test_what_a_compiler_reads(tmp_path: Path) -> None:
    write_tree(tmp_path / "source", files=1, functions=1)
    compiler = Path("/usr/bin/cc")
    headers = headers_of(compiler, tmp_path / "source")
    assert {"stdio.h", "stdlib.h"} <= {path.name for path in headers}
    assert "vector.h" not in {path.name for path in headers}
    assert [path.name for path in parts_of(compiler)] == ["cc1", "as"]
