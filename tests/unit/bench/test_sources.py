"""What is built, and what is packed for guests."""

import subprocess
from pathlib import Path

import pytest

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.measured_guest import parse_ldd, program_archive
from hugepage_qa.bench.source_build import SourceBuild, environment_on, write_tree
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

LDD = """\
\tlinux-vdso.so.1 (0x00007ffd3a9f2000)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f0c4a0c0000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0c49edf000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f0c4a4c6000)
"""


def test_the_same_source_each_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_tree(tmp_path / name, files=2, functions=3)
    one, other = ({path.name: path.read_text() for path in (tmp_path / name).iterdir()} for name in ("one", "other"))
    assert one == other
    assert set(one) == {"Makefile", "vector.h", "main.c", "part0.c", "part1.c"}


def test_the_source_can_be_built(tmp_path: Path) -> None:
    write_tree(tmp_path / "tree", files=2, functions=2)
    subprocess.run(["make", "-s", "-C", str(tmp_path / "tree")], check=True)  # noqa: S607
    assert (tmp_path / "tree/program").exists()


def test_compilers_on_static_pages() -> None:
    small, large = Backing(Kind.STATIC, 2 * MIB), Backing(Kind.STATIC, GIB)
    assert environment_on(small) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2097152"}
    assert environment_on(Backing(Kind.TRANSPARENT, 2 * MIB, is_default=True)) == {}
    assert SourceBuild().backings([small, large]) == (small,)


def test_libraries() -> None:
    assert [str(path) for path in parse_ldd(LDD, Path("p"))] == [
        "/lib/x86_64-linux-gnu/libm.so.6",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
    ]


def test_a_library_that_is_missing() -> None:
    with pytest.raises(InputError, match="libm"):
        parse_ldd(LDD.replace("/lib/x86_64-linux-gnu/libm.so.6 (0x00007f0c4a0c0000)", "not found"), Path("p"))


def test_an_archive_holds_directories_before_files(tmp_path: Path) -> None:
    (tmp_path / "share").mkdir()
    (tmp_path / "share/zone").write_text("content")
    archive = program_archive([], [tmp_path / "share"], {"data.tar": b"1234"})
    place = str(tmp_path / "share").lstrip("/").encode()
    assert archive.startswith(b"070701")
    assert 0 < archive.index(place + b"\0") < archive.index(place + b"/zone\0")
    assert b"data.tar\0" in archive
    assert b"content" in archive
