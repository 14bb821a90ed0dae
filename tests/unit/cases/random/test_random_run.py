"""Many programs make one verdict for a page size."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from tests.unit.cases.random.targets import SMALL, SMALL_SCALE, Starts, machine
from tests.unit.cases.random.wrong_kernels import loses_free_page
from tests.unit.cases.transcript import Replay

from hugepage_qa.cases.judge import NOTHING_LEFT
from hugepage_qa.cases.random import random_run as module
from hugepage_qa.cases.random.random_run import RandomResult, run_random_programs, run_saved_program
from hugepage_qa.cases.random.random_step import PoolRun
from hugepage_qa.cases.random.random_surroundings import AS_MODELLED, PoolsChanged
from hugepage_qa.cases.random.saved_program import parse_program
from hugepage_qa.cases.result import Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.oracle.compare import Difference
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.pool_setup import SetCount
from hugepage_qa.oracle.pool.pool_use import Exit
from hugepage_qa.process.actor_link import ActorGone, ActorStarved

NOBODY = Host(Replay([]))


class Surroundings:
    """Runs programs on models; ``fails`` is raised from the third program on."""

    scale = SMALL_SCALE

    def __init__(self, starts: Starts, fails: Exception | None = None) -> None:
        self._starts = starts
        self._fails = fails

    def start(self) -> PoolRun:
        if self._fails and len(self._starts.targets) == 2:
            raise self._fails
        return self._starts()

    def require_room_for(self, _operations: object) -> None:
        pass


class LiveStub:
    def __init__(self, *_arguments: object) -> None:
        self.rule = AS_MODELLED
        self.differences: list[Difference] = []
        self.problems: list[str] = []
        self.traceback = ""
        self.ran_out_of_memory = False
        self.gone: list[ActorGone] = []


@contextmanager
def unchecked(*_arguments: object) -> Iterator[None]:
    yield


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Live", LiveStub)
    monkeypatch.setattr(module, "checked_end", unchecked)
    monkeypatch.setattr(module, "evidence", lambda _host: "meminfo")


def judged(monkeypatch: pytest.MonkeyPatch, starts: Starts, fails: Exception | None = None) -> RandomResult:
    monkeypatch.setattr(module, "PoolSurroundings", lambda *_: Surroundings(starts, fails))
    return run_random_programs(NOBODY, SMALL, 7, 60)


def test_a_right_kernel_passes_when_all_operations_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = judged(monkeypatch, Starts())
    assert (judgement.name, judgement.verdict, judgement.evidence) == ("/random/2M", Verdict.PASS, "")
    assert judgement.outcome.operations >= 60
    assert judgement.outcome.programs > 2
    assert judgement.reason.startswith(f"seed 7: {judgement.outcome.operations} operations in ")


def test_a_known_bug_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = partial(machine, "6.18", {Quirk.UNMAP_RESERVES_PAGE_IN_USE})
    monkeypatch.setattr(module, "PoolSurroundings", lambda *_: Surroundings(Starts(kernel, kernel)))
    judgements = (run_random_programs(NOBODY, SMALL, number, 800) for number in range(100))
    judgement = next(one for one in judgements if one.verdict is not Verdict.PASS)
    assert judgement.verdict is Verdict.KNOWN
    assert judgement.reason.startswith("unmap-reserves-page-in-use (seed ")


def test_the_first_program_that_fails_is_made_small_and_can_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(act=loses_free_page)
    monkeypatch.setattr(module, "PoolSurroundings", lambda *_: Surroundings(starts))
    judgement = run_random_programs(NOBODY, SMALL, 7, 800)
    assert judgement.verdict is Verdict.FAIL
    assert "free_hugepages: expected" in judgement.reason
    assert judgement.outcome.failed is not None
    assert str(judgement.outcome.failed) in judgement.evidence
    again = run_saved_program(NOBODY, SMALL, parse_program(str(judgement.outcome.failed)))
    assert again.verdict is Verdict.FAIL
    assert again.outcome.failed is not None
    assert again.outcome.failed.operations == judgement.outcome.failed.operations


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (CannotRun("memory is short"), Verdict.SKIP),
        (ActorStarved("no CPU"), Verdict.ERROR),
        (InputError("the kernel log was overwritten"), Verdict.ERROR),
        (PoolsChanged("free 1; before: free 2"), Verdict.ERROR),
        (OSError("no such file"), Verdict.ERROR),
    ],
)
def test_what_is_not_the_kernels_fault_is_none(
    error: Exception, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    judgement = judged(monkeypatch, Starts(), error)
    assert judgement.verdict is verdict
    assert str(error) in judgement.reason


def test_an_actor_that_the_kernel_does_not_come_back_to_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = judged(monkeypatch, Starts(), ActorGone("blocked in the kernel for 300 s"))
    assert judgement.verdict is Verdict.FAIL
    assert "blocked in the kernel" in judgement.reason


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Verdict.FAIL),
        (CannotRun("memory is short"), Verdict.FAIL),
        (ActorGone("killed"), Verdict.FAIL),
        (ActorStarved("no CPU"), Verdict.ERROR),
    ],
)
def test_what_is_left_at_the_end_fails_unless_the_suite_broke_off(
    error: Exception | None, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def leaving(live: LiveStub, *_arguments: object) -> Iterator[None]:
        try:
            yield
        finally:
            live.differences.append(Difference("pool", NOTHING_LEFT, "0 pages", "1 page"))

    monkeypatch.setattr(module, "checked_end", leaving)
    judgement = judged(monkeypatch, Starts(), error)
    assert judgement.verdict is verdict
    assert str(error or "expected 0 pages, found 1 page") in judgement.reason


def test_a_program_that_uses_what_it_has_not_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts()
    monkeypatch.setattr(module, "PoolSurroundings", lambda *_: Surroundings(starts))
    with pytest.raises(InputError, match="'p9', which there is not"):
        run_saved_program(NOBODY, SMALL, (SetCount(SMALL, 1), Exit("p9")))
    assert starts.operations == []
