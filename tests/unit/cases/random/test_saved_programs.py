"""A program that failed is run again from its text; a file that is no program is refused."""

from pathlib import Path

import pytest

from hugepage_qa.cases.random.random_search import Program
from hugepage_qa.cases.random.saved_program import page_size_of, parse_program, read_program
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.pool.pool_expectations import POOL_FREE
from hugepage_qa.oracle.pool.pool_setup import SetCount
from hugepage_qa.oracle.pool.pool_use import Exit, Fork, MapAnonymous
from hugepage_qa.sizes import MIB

SIZE = 2 * MIB
OPERATIONS = (
    SetCount(SIZE, 3),
    MapAnonymous("a", 1, SIZE, 2, shared=True, noreserve=False),
    Fork("a", "p2"),
    Exit("a"),
)


def test_the_text_of_a_program_is_a_program() -> None:
    failed = Program(OPERATIONS, (Difference("free", POOL_FREE, "1", "2"),))
    assert parse_program(f"# a remark\n\n{failed}\n") == OPERATIONS
    assert page_size_of(OPERATIONS) == SIZE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no operation"),
        ("# only a remark\n", "no operation"),
        ("Exit(process='a')\nrm -rf\n", "line 2: 'rm -rf'"),
        ("Fork(process='a', child='p1')\nFork(process='a', child='p1')", "'p1' is made twice"),
        ("Fork(process='a', child='a')", "'a' is made twice"),
    ],
)
def test_what_is_no_program_is_refused_with_the_name_of_the_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "program.txt"
    file.write_text(text, encoding="ascii")
    with pytest.raises(InputError) as refusal:
        read_program(file)
    assert str(refusal.value).startswith(f"{file}: ")
    assert said in str(refusal.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "long").write_bytes(b"# " + b"x" * (1 << 20))
    for name in ("missing", "binary", "long", "."):
        with pytest.raises(InputError, match=str(tmp_path)):
            read_program(tmp_path / name)


def test_a_program_without_pages_has_no_page_size() -> None:
    with pytest.raises(InputError, match="no operation with pages"):
        page_size_of((Exit("a"),))
