"""When a machine is kept, replaced, tried once more and given up; and what a loss says. The machines are doubles."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cases.fake_machines import SERIAL, FakeMachines, backend_of, lost, plan

from hugepage_qa.cases.live_machine import LiveMachine, MachineKind, Task, Unit
from hugepage_qa.cases.result import BROKEN_BEFORE, FRAGMENTED, Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.emulator import Stopped
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.sizes import GIB

SMALL, LARGE = (1, 1), (2, 2)
BY_THE_KERNEL = pytest.mark.parametrize("loss", [Loss.PANICKED, Loss.LOCKED_UP])
BY_OTHERS = pytest.mark.parametrize(
    "loss", [Loss.EMULATION_BROKE, Loss.AGENT_ENDED, Loss.EMULATOR_ENDED, Loss.NO_ANSWER]
)

Act = Callable[[Host], Result | None]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> FakeMachines:
    return FakeMachines(monkeypatch)


@pytest.fixture
def live(machines: FakeMachines, tmp_path: Path) -> Iterator[LiveMachine]:
    assert not machines.started
    machine = LiveMachine(plan(tmp_path))
    yield machine
    machine.close()
    assert not machines.running


def unit(*acts: Act, memory: tuple[int, ...] = SMALL, cleared: bool = True) -> Unit:
    return Unit(
        "unit", MachineKind(memory, cleared), tuple(Task(f"/task-{number}", act) for number, act in enumerate(acts))
    )


def ending_in(verdict: Verdict) -> Act:
    return lambda _host: Result("/task", verdict)


def losing(*losses: Loss) -> Act:
    """Return what loses one machine after the other, and passes on the next one."""
    left = list(losses)

    def act(host: Host) -> Result:
        backend_of(host).perform("act", [f"{len(left)} left"])
        if left:
            raise lost(left.pop(0))
        return Result("/task", Verdict.PASS)

    return act


def judge(live: LiveMachine, of: Unit, number: int = 0) -> Result:
    result = live.judge(of.tasks[number], of)
    assert result is not None
    return result


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.KNOWN, Verdict.SKIP])
def test_a_machine_that_nothing_failed_on_is_kept(live: LiveMachine, machines: FakeMachines, verdict: Verdict) -> None:
    both = unit(ending_in(verdict), ending_in(Verdict.PASS))
    assert [judge(live, both, number).verdict for number in (0, 1)] == [verdict, Verdict.PASS]
    assert (live.boots, len(machines.running)) == (1, 1)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.ERROR])
def test_a_machine_that_something_failed_on_is_replaced(
    live: LiveMachine, machines: FakeMachines, verdict: Verdict
) -> None:
    both = unit(ending_in(verdict), ending_in(Verdict.PASS))
    assert judge(live, both).verdict is verdict
    assert not machines.running
    assert judge(live, both, 1).verdict is Verdict.PASS
    assert live.boots == 2


@pytest.mark.parametrize(("before", "boots"), [(9, 1), (10, 2)])
def test_what_a_worn_machine_is_too_fragmented_for_is_tried_on_a_new_one(
    live: LiveMachine, machines: FakeMachines, before: int, boots: int
) -> None:
    fragmented = Result("/task", Verdict.SKIP, (f"{FRAGMENTED}: no range",))
    others = unit(*[ending_in(Verdict.PASS)] * before)
    for number in range(before):
        judge(live, others, number)

    def act(_host: Host) -> Result:
        return fragmented if len(machines.started) == 1 else Result("/task", Verdict.PASS)

    one = unit(act, lambda _host: fragmented)
    assert judge(live, one).verdict is (Verdict.SKIP if boots == 1 else Verdict.PASS)
    # a new machine that has no range either is not replaced each time
    assert judge(live, one, 1) == fragmented
    assert (live.boots, len(machines.running)) == (2, 1)


def test_what_cannot_be_where_memory_has_broken_is_tried_on_a_new_machine_once(live: LiveMachine) -> None:
    broken = Result("/task", Verdict.SKIP, (f"{BROKEN_BEFORE}: a block may not come back",))
    one = unit(ending_in(Verdict.PASS), lambda _host: broken)
    assert judge(live, one).verdict is Verdict.PASS
    assert judge(live, one, 1) == broken
    assert live.boots == 2


def test_what_must_be_first_on_a_machine_gets_a_new_one_after_others_and_keeps_it(live: LiveMachine) -> None:
    first = replace(unit(*[ending_in(Verdict.PASS)] * 2), first=True)
    judge(live, first)
    assert live.boots == 1
    judge(live, unit(ending_in(Verdict.PASS)))
    assert live.boots == 1
    judge(live, first)
    judge(live, first, 1)
    assert live.boots == 2


def test_what_is_not_meant_for_the_machine_has_no_result_and_costs_no_machine(live: LiveMachine) -> None:
    one = unit(lambda _host: None)
    assert live.judge(one.tasks[0], one) is None
    assert live.judge(one.tasks[0], one) is None
    assert live.boots == 1


def test_another_memory_is_another_machine(live: LiveMachine, machines: FakeMachines) -> None:
    assert live.kind is None
    kinds: list[MachineKind | None] = []
    for memory in (SMALL, SMALL, LARGE, SMALL):
        judge(live, unit(ending_in(Verdict.PASS), memory=memory))
        kinds.append(live.kind)
    assert kinds == [MachineKind(memory) for memory in (SMALL, SMALL, LARGE, SMALL)]
    assert [machine.machine.memory for machine in machines.started] == [SMALL, LARGE, SMALL]
    assert len(machines.running) == 1


def test_a_machine_that_clears_pages_is_another_one_than_a_machine_that_does_not(
    live: LiveMachine, machines: FakeMachines
) -> None:
    for cleared in (True, True, False):
        judge(live, unit(ending_in(Verdict.PASS), cleared=cleared))
    words = [machine.machine.command_line.split() for machine in machines.started]
    assert ["init_on_alloc=1" in line for line in words] == [True, False]
    assert ["init_on_alloc=0" in line for line in words] == [False, True]


def test_words_of_an_area_are_on_the_command_line_of_a_machine_of_its_own(
    live: LiveMachine, machines: FakeMachines
) -> None:
    for words in ("", "hugetlb_cma=1:3G", "hugetlb_cma=1:3G"):
        task = Task("/task", ending_in(Verdict.PASS))
        judge(live, Unit("unit", MachineKind(SMALL, words=words), (task,)))
    lines = [machine.machine.command_line.split() for machine in machines.started]
    assert ["hugetlb_cma=1:3G" in line for line in lines] == [False, True]


def test_nothing_else_runs_on_a_machine_that_a_known_bug_has_spoiled(live: LiveMachine, machines: FakeMachines) -> None:
    def spoil(host: Host) -> Result:
        host.is_spoiled = True
        return Result("/task", Verdict.PASS)

    both = unit(spoil, ending_in(Verdict.PASS))
    assert [judge(live, both, number).verdict for number in (0, 1)] == [Verdict.PASS, Verdict.PASS]
    assert (live.boots, len(machines.running)) == (2, 1)


def test_machines_of_a_shape_that_was_asked_for_have_it_whatever_is_run(tmp_path: Path, machines: FakeMachines) -> None:
    shape = (GIB, 2 * GIB, GIB)
    live = LiveMachine(replace(plan(tmp_path), nodes=shape, cpus=1))
    with closing(live):
        for memory in (SMALL, LARGE):
            judge(live, unit(ending_in(Verdict.PASS), memory=memory))
    assert {(machine.machine.memory, machine.machine.cpus) for machine in machines.started} == {(shape, 1)}


@pytest.mark.parametrize("says", [None, lost(Loss.NO_ANSWER), InputError("it counts nothing")])
def test_a_machine_is_asked_before_it_ends(tmp_path: Path, machines: FakeMachines, says: Exception | None) -> None:
    asked: list[tuple[object, int]] = []

    def ask(running: object) -> None:
        asked.append((running, len(machines.running)))
        if says:
            raise says

    live = LiveMachine(replace(plan(tmp_path), before_end=ask))
    judge(live, unit(ending_in(Verdict.PASS)))
    assert not asked
    with pytest.raises(InputError) if isinstance(says, InputError) else nullcontext():
        live.close()
    live.close()
    assert asked == [(machines.started[0], 1)]
    assert not machines.running


@BY_THE_KERNEL
def test_what_the_kernel_did_is_a_failure_with_the_console_and_what_was_done(
    live: LiveMachine, machines: FakeMachines, loss: Loss
) -> None:
    two = unit(losing(), losing(loss))
    judge(live, two)
    result = judge(live, two, 1)
    assert (result.name, result.verdict) == ("/task-1", Verdict.FAIL)
    assert result.reason == f"{loss.value}: what was seen of it"
    assert result.evidence == f"--- the last operations\nact 1 left\n--- the serial console\n{SERIAL}"
    assert not machines.running
    assert judge(live, two, 1).verdict is Verdict.PASS
    assert live.boots == 2


@BY_OTHERS
def test_what_the_kernel_had_no_part_in_is_tried_once_more(live: LiveMachine, loss: Loss) -> None:
    assert judge(live, unit(losing(loss))).verdict is Verdict.PASS
    assert live.boots == 2


@BY_OTHERS
def test_what_is_lost_again_without_the_kernel_is_an_error(
    live: LiveMachine, machines: FakeMachines, loss: Loss
) -> None:
    tries = 5 if loss is Loss.EMULATION_BROKE else 2
    result = judge(live, unit(losing(*[loss] * tries)))
    assert (result.verdict, result.reason) == (Verdict.ERROR, f"{loss.value}: what was seen of it")
    assert SERIAL in result.evidence
    assert live.boots == tries
    assert not machines.running


def failing_starved(times: int) -> Act:
    """Return what fails on machines that are starved, so many, and then on one that is not."""
    left = [True] * times

    def act(host: Host) -> Result:
        if left:
            backend_of(host).running.starvation.told = "it had 2 s of a CPU in 20 s"
            left.pop()
        return Result("/task", Verdict.FAIL, ("the kernel is more tainted",))

    return act


def test_a_failure_on_a_machine_that_was_starved_is_tried_once_more(live: LiveMachine) -> None:
    result = judge(live, unit(failing_starved(1)))
    assert (result.verdict, live.boots) == (Verdict.FAIL, 2)
    starved = "the machine was starved: it had 2 s of a CPU in 20 s; the kernel is more tainted"
    assert result.reasons == ("the kernel is more tainted", f"tried again after: {starved}")
    assert SERIAL in result.evidence


def test_a_failure_on_two_machines_that_were_starved_says_nothing_of_the_kernel(live: LiveMachine) -> None:
    result = judge(live, unit(failing_starved(2)))
    assert (result.verdict, live.boots) == (Verdict.ERROR, 2)
    assert result.reason == "the machine was starved: it had 2 s of a CPU in 20 s; the kernel is more tainted"


def test_a_failure_the_second_time_is_one(live: LiveMachine) -> None:
    assert judge(live, unit(losing(Loss.EMULATION_BROKE, Loss.PANICKED))).verdict is Verdict.FAIL


def test_only_the_last_part_of_a_console_is_evidence(live: LiveMachine) -> None:
    def act(_host: Host) -> Result:
        raise MachineLost(Loss.PANICKED, "it", "x" * 50_000 + "the end")

    found = judge(live, unit(act)).evidence
    assert found.endswith("xthe end")
    assert 20_000 <= len(found) < 21_000


@BY_OTHERS
def test_a_machine_that_does_not_come_up_is_tried_once_more(
    live: LiveMachine, machines: FakeMachines, loss: Loss
) -> None:
    machines.at_boot = [lost(loss)]
    live.host(MachineKind(SMALL))
    assert (live.boots, len(machines.running)) == (2, 1)


@BY_THE_KERNEL
def test_a_kernel_that_panics_at_boot_is_not_tried_again(live: LiveMachine, machines: FakeMachines, loss: Loss) -> None:
    machines.at_boot = [lost(loss)]
    with pytest.raises(MachineLost):
        live.host(MachineKind(SMALL))
    assert live.boots == 1


def test_a_kernel_that_panics_at_the_boot_for_a_task_fails_it(live: LiveMachine, machines: FakeMachines) -> None:
    machines.at_boot = [lost(Loss.PANICKED)]
    assert judge(live, unit(ending_in(Verdict.PASS))).verdict is Verdict.FAIL


def test_what_can_never_boot_ends_the_run(live: LiveMachine) -> None:
    def act(_host: Host) -> Result:
        raise InputError("no such CPU")

    one = unit(act)
    with pytest.raises(InputError, match="no such CPU"):
        live.judge(one.tasks[0], one)


# --- what is set up around tasks ---


class Around:
    """What a unit has around its tasks: it tells when it begins and ends, and what goes wrong."""

    def __init__(self, *, begins_with: Exception | None = None, ends_with: Exception | None = None) -> None:
        self.told: list[str] = []
        self._begins_with, self._ends_with = begins_with, ends_with

    @contextmanager
    def __call__(self, host: Host) -> Iterator[None]:
        if self._begins_with:
            raise self._begins_with
        self.told.append("begun")
        try:
            yield
        finally:
            backend_of(host).perform("act", ["the end"])
            self.told.append("ended")
            if self._ends_with:
                raise self._ends_with


def around(what: Around, *acts: Act) -> Unit:
    plain = unit(*acts)
    return Unit(plain.name, plain.kind, plain.tasks, what)


def test_it_is_there_once_for_the_tasks_of_a_unit_and_goes_before_another(live: LiveMachine) -> None:
    what = Around()
    one = around(what, ending_in(Verdict.PASS), ending_in(Verdict.PASS))
    judge(live, one)
    judge(live, one, 1)
    assert what.told == ["begun"]
    judge(live, unit(ending_in(Verdict.PASS)))
    assert what.told == ["begun", "ended"]
    assert live.boots == 1


@pytest.mark.filterwarnings("error")
def test_it_ends_with_a_machine_that_is_thrown_away(live: LiveMachine, machines: FakeMachines) -> None:
    what = Around()
    operations: list[str] = []
    one = around(what, ending_in(Verdict.FAIL), ending_in(Verdict.PASS))
    machines.on_end = lambda: operations.extend(what.told)
    judge(live, one)
    assert operations == ["begun"], "nothing is taken away from a machine that goes"
    assert what.told == ["begun"], "nor is a machine asked that is gone"
    judge(live, one, 1)
    assert what.told == ["begun", "begun"]


def test_what_cannot_be_set_up_is_an_error_of_its_task_alone(live: LiveMachine) -> None:
    result = judge(live, around(Around(begins_with=PermissionError(1, "not permitted")), ending_in(Verdict.PASS)))
    assert result.verdict is Verdict.ERROR
    assert "PermissionError" in result.reason
    assert "Traceback" in result.evidence
    assert judge(live, unit(ending_in(Verdict.PASS))).verdict is Verdict.PASS
    assert live.boots == 2


def test_what_cannot_be_taken_away_is_told(live: LiveMachine) -> None:
    judge(live, around(Around(ends_with=InputError("a group is held")), ending_in(Verdict.PASS)))
    other = unit(ending_in(Verdict.PASS), ending_in(Verdict.PASS))
    assert judge(live, other).reason == "InputError: a group is held"
    assert judge(live, other, 1).verdict is Verdict.PASS


def test_a_machine_that_is_lost_while_something_is_set_up_is_lost(live: LiveMachine) -> None:
    result = judge(live, around(Around(begins_with=lost(Loss.PANICKED)), ending_in(Verdict.PASS)))
    assert result.verdict is Verdict.FAIL
    assert SERIAL in result.evidence


# --- stopped ---


def test_a_task_that_is_stopped_has_no_result(live: LiveMachine) -> None:
    def act(host: Host) -> Result:
        live.stop()
        host.read("proc/meminfo")
        return Result("/task", Verdict.PASS)

    one = unit(act, ending_in(Verdict.PASS))
    for task in one.tasks:
        with pytest.raises(Stopped):
            live.judge(task, one)
    assert live.boots == 1


def test_nothing_more_is_done_on_a_machine_that_runs(live: LiveMachine) -> None:
    one = unit(ending_in(Verdict.PASS))
    judge(live, one)
    live.stop()
    with pytest.raises(Stopped):
        live.judge(one.tasks[0], one)


def test_a_machine_that_is_booting_is_stopped(live: LiveMachine, machines: FakeMachines) -> None:
    machines.stop_at_boot = live.stop
    one = unit(ending_in(Verdict.PASS))
    with pytest.raises(Stopped):
        live.judge(one.tasks[0], one)
    assert live.boots == 1
