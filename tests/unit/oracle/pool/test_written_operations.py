"""Operations are read back as they were written, and nothing else is taken for one."""

import pytest
from tests.unit.cases.random.record_random import PROGRAM

from hugepage_qa.cases.random.saved_program import parse_operation
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.pool.pool_operation import Operation
from hugepage_qa.oracle.pool.pool_setup import Demote, LimitGroup
from hugepage_qa.sizes import GIB


@pytest.mark.parametrize("operation", [*PROGRAM, Demote(GIB, 2), LimitGroup("g1", GIB, 0, reserved=True)], ids=str)
def test_what_is_written_is_read(operation: Operation) -> None:
    assert parse_operation(str(operation)) == operation


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "expected an operation"),
        ("Operation()", "expected an operation"),
        ("Range(process='a', area=1, page_size=2M, page=1, pages=1)", "expected an operation"),
        ("Exit('a')", "expected Exit(process=...)"),
        ("SetCount()", "expected SetCount(page_size=..., count=..., node=...)"),
        ("SetCount(count=1, page_size=2M, node=None)", "expected SetCount(page_size=..., count=..., node=...)"),
        ("SetCount(page_size=2M, count=True, node=None)", "count=True"),
        ("SetCount(page_size=2M, count=-1, node=None)", "count=-1"),
        ("SetCount(page_size=2M, count=1000, node=None)", "at most 999"),
        ("Unmap(process='a', area=1, page_size=2M, page=0, pages=9)", "at most 8"),
        ("Exit(process='../x')", "process='../x'"),
        ("Exit(process=3)", "process=3"),
        ("Exit(process=None)", "process=None"),
    ],
)
def test_anything_else_is_refused(line: str, said: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse_operation(line)
    assert said in str(refusal.value)
    assert repr(line) in str(refusal.value)
