"""What the compiler has made once is not made again, unless anything that went into it is another."""

import gzip
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.process.c_compiler import build_actor, compile_to


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


def made(directory: Path, text: str, *options: str) -> bytes:
    directory.mkdir(exist_ok=True)
    source = directory / "number.c"
    source.write_text(text, encoding="ascii")
    compile_to(directory / "number.o", [source], ["-c", *options])
    return (directory / "number.o").read_bytes()


def kept(cache: Path) -> list[Path]:
    return sorted(cache.iterdir())


def test_it_is_kept_by_what_went_into_it(cache: Path, tmp_path: Path) -> None:
    first = made(tmp_path / "one", "int number = 1;")
    assert made(tmp_path / "two", "int number = 1;") == first
    assert len(kept(cache)) == 1
    assert made(tmp_path / "one", "int number = 2;") != first
    assert made(tmp_path / "one", "int number = 1;", "-fPIC") is not None
    assert len(kept(cache)) == 3


@pytest.mark.parametrize("left", [b"", b"\x1f\x8b", b"no gzip"])
def test_what_was_cut_off_is_made_again(left: bytes, cache: Path, tmp_path: Path) -> None:
    first = made(tmp_path / "one", "int number = 1;")
    kept(cache)[0].write_bytes(left)
    assert made(tmp_path / "two", "int number = 1;") == first
    assert kept(cache)[0].read_bytes() != left


def test_no_cache_that_others_can_write_to_is_used(cache: Path, tmp_path: Path) -> None:
    first = made(tmp_path / "one", "int number = 1;")
    kept(cache)[0].write_bytes(b"somebody else's")
    cache.parent.chmod(0o777)
    assert made(tmp_path / "two", "int number = 1;") == first
    assert kept(cache)[0].read_bytes() == b"somebody else's"


def test_what_is_refused_is_named_and_not_kept(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"makes no number\.o: .*number\.c"):
        made(tmp_path / "one", "int number = ;")
    assert not cache.exists()


def test_an_actor_is_built_once_for_all_directories(cache: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    program = build_actor(first)
    assert program.stat().st_mode & 0o111
    kept(cache)[0].write_bytes(gzip.compress(b"taken from the cache"))
    assert build_actor(second).read_bytes() == b"taken from the cache"
