"""``hugepage-qa pool-random``, as people use it; the machine is not touched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from hugepage_qa.cases.random.random_run import RandomOutcome, RandomResult
from hugepage_qa.cases.random.random_search import Program
from hugepage_qa.cases.result import Verdict
from hugepage_qa.commands import pool_random as module
from hugepage_qa.commands.pool_random import pool_random
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.pool.pool_setup import SetCount
from hugepage_qa.sizes import GIB, MIB, format_size

SMALL = 2 * MIB
FAILED = Program((SetCount(SMALL, 3),))


class Machine:
    """Stands for the machine: what it was asked for, and what comes of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.verdict = Verdict.PASS
        self.unrestored: tuple[str, ...] = ()

    def judge(self, _host: object, size: int, *what: object) -> RandomResult:
        self.asked.append((size, *what[:2]))
        failed = FAILED if self.verdict is Verdict.FAIL else None
        outcome = RandomOutcome(operations=50, failed=failed)
        return RandomResult(f"/random/{format_size(size)}", self.verdict, ("why",), 2.0, outcome=outcome)

    @contextmanager
    def protected(self, _purpose: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(scratch=Path("/nowhere"), unrestored=self.unrestored)

    @contextmanager
    def real(self, _scratch: Path) -> Iterator[None]:
        yield


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    found = Machine()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "require_root", lambda _: None)
    monkeypatch.setattr(module, "read_pools", lambda _: [SimpleNamespace(size=size) for size in (SMALL, GIB)])
    monkeypatch.setattr(module, "protected_machine", found.protected)
    monkeypatch.setattr(module, "real_machine", found.real)
    monkeypatch.setattr(module, "run_random_programs", found.judge)
    monkeypatch.setattr(module, "run_saved_program", found.judge)
    return found


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(pool_random, arguments)


def refused(*arguments: str) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def test_all_page_sizes_are_tried_with_the_seed_that_is_printed(machine: Machine) -> None:
    result = invoke("--operations", "50", "--seed", "7")
    assert result.exit_code == 0
    assert machine.asked == [(SMALL, 7, 50), (GIB, 7, 50)]
    assert "seed 7, 50 operations" in result.output
    assert "pass /random/1G: why (25 operations per second)" in result.output
    assert "again: hugepage-qa pool-random --operations 50 --seed 7 --size 2M" in result.output


def test_a_seed_is_drawn_and_printed_when_none_is_given(machine: Machine) -> None:
    result = invoke("--size", "2M", "--size", "2048K")
    assert len(machine.asked) == 1
    assert f"seed {machine.asked[0][1]}, " in result.output


def test_a_failing_program_is_saved_and_run_again_from_its_file(machine: Machine, tmp_path: Path) -> None:
    machine.verdict = Verdict.FAIL
    result = invoke("--seed", "7", "--size", "2M")
    assert result.exit_code == 1
    file = tmp_path / "pool-random-7-2M.txt"
    assert f"again: hugepage-qa pool-random --replay {file}" in result.output
    machine.verdict = Verdict.PASS
    assert invoke("--replay", str(file)).exit_code == 0
    assert machine.asked[-1] == (SMALL, FAILED.operations)


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.KNOWN, 0), (Verdict.SKIP, 2), (Verdict.ERROR, 3)])
def test_the_exit_code_is_that_of_the_worst_verdict(machine: Machine, verdict: Verdict, code: int) -> None:
    machine.verdict = verdict
    assert invoke("--seed", "7").exit_code == code


def test_what_is_not_put_back_is_an_error(machine: Machine) -> None:
    machine.unrestored = ("nr_hugepages: wanted 0, found 1",)
    result = invoke("--seed", "7")
    assert result.exit_code == 3
    assert "nr_hugepages: wanted 0, found 1" in result.output


def test_wrong_input_is_named_before_anything_is_done(machine: Machine) -> None:
    assert "expected a page size of this machine: 2M, 1G" in refused("--size", "16M")
    assert "2X" in refused("--size", "2X")
    assert "missing.txt" in refused("--replay", "missing.txt")
    assert "leave --size and --seed out" in refused("--replay", "f", "--seed", "1")
    assert invoke("--operations", "0").exit_code == 2
    assert machine.asked == []
