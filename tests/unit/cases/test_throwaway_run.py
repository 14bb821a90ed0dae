"""Live cases spread over machines: what is run where and in which order, and what becomes of it. No machine boots."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.cases.fake_machines import SERIAL, FakeMachines, backend_of, lost, plan

from hugepage_qa.cases import judge as judge_module
from hugepage_qa.cases import throwaway_run
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.random import random_run, soak
from hugepage_qa.cases.random.soak import soak_case
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.cases.throwaway_run import NODES, LiveWanted, ThrowawayRun
from hugepage_qa.cases.time_limit import NO_TIME, TimeLimit
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.sizes import GIB, MIB, format_size

#: what the double has: its architecture has no other
BOTH = (2 * MIB, GIB)
LARGE_NODES = (6 * GIB, 5 * GIB)

Act = Callable[[Live], None]


@pytest.fixture(autouse=True)
def architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sizes are those of the pools, and there is memory for two machines of any size."""
    monkeypatch.setattr(judge_module, "running_mmu", lambda _host: SimpleNamespace(hugetlb=BOTH))
    monkeypatch.setattr(throwaway_run, "free_memory", lambda: 64 * GIB)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> FakeMachines:
    return FakeMachines(monkeypatch)


def area(
    name: str,
    *acts: Act,
    sizes: Sizes = Sizes.ONCE,
    around: Callable[[Host], AbstractContextManager[object]] = nullcontext,
    uncleared: bool = False,
) -> Area:
    """Return an area whose cases are ``case-0`` and so on."""
    made = Area(name, sizes=sizes, around=around, uncleared=uncleared)
    for number, act in enumerate(acts):

        def case(live: Live, act: Act = act) -> None:
            act(live)

        case.__name__ = f"case_{number}"
        made.case("what is judged here", "nowhere")(case)
    return made


def passing(_live: Live) -> None:
    """Find nothing."""


def failing(live: Live) -> None:
    """Find something."""
    live.expect("a fact", 1, 2)


def losing(*losses: Loss) -> Act:
    """Return what loses one machine after the other, and passes on the next one."""
    left = list(losses)

    def act(live: Live) -> None:
        if left:
            backend = backend_of(live.host)
            backend.perform("act", ["the last"])
            # from now on whoever asks is told
            loss = lost(left.pop(0))
            backend.perform = _raising(loss)  # type: ignore[method-assign]
            raise loss

    return act


def _raising(error: Exception) -> Callable[..., None]:
    def perform(_operation: str, _arguments: object) -> None:
        raise error

    return perform


class Run:
    """A run on ``count`` machines, with what it told of."""

    def __init__(self, directory: Path, count: int = 1) -> None:
        self.units: list[tuple[str, tuple[str, ...]]] = []
        self._lock = threading.Lock()
        #: how far what is long was
        self.told: list[str] = []
        self.run = ThrowawayRun(plan(directory), count, self._finished, self.told.append)

    def _finished(self, name: str, results: Sequence[Result], seconds: float) -> None:
        assert seconds >= 0
        with self._lock:
            self.units.append((name, tuple(result.name for result in results)))

    def __call__(
        self,
        *areas: Area,
        selection: Selection = EVERYTHING,
        took: Mapping[str, float] | None = None,
        operations: int = 0,
    ) -> dict[str, Result]:
        """Return name -> result."""
        results = list(self.run.run(LiveWanted(areas, selection, operations), took or {}))
        assert len({result.name for result in results}) == len(results)
        return {result.name: result for result in results}


@pytest.fixture
def run(machines: FakeMachines, tmp_path: Path) -> Iterator[Run]:
    assert not machines.started
    yield Run(tmp_path)
    assert not machines.running


def verdicts(results: Mapping[str, Result]) -> dict[str, Verdict]:
    return {name: result.verdict for name, result in results.items()}


def test_every_case_runs_once_or_on_every_page_size(run: Run, machines: FakeMachines) -> None:
    found = run(area("once", passing, passing), area("each", passing, sizes=Sizes.EACH))
    assert set(verdicts(found).values()) == {Verdict.PASS}
    assert set(found) == {"/once/case-0", "/once/case-1", "/each/case-0/2M", "/each/case-0/1G"}
    assert sorted(run.units) == [
        ("each 1G", ("/each/case-0/1G",)),
        ("each 2M", ("/each/case-0/2M",)),
        ("once once", ("/once/case-0", "/once/case-1")),
    ]
    assert [machine.machine.memory for machine in machines.started] == [NODES, LARGE_NODES]


def test_cases_of_a_unit_share_a_machine_that_nothing_failed_on(run: Run, machines: FakeMachines) -> None:
    run(area("one", passing, passing, passing), area("two", passing))
    assert len(machines.started) == run.run.boots == 1


def test_a_failure_takes_the_machine_and_nothing_else(run: Run, machines: FakeMachines) -> None:
    found = run(area("one", passing, failing, passing))
    assert list(verdicts(found).values()) == [Verdict.PASS, Verdict.FAIL, Verdict.PASS]
    assert len(machines.started) == 2


def test_a_panic_fails_its_case_with_the_console_and_the_rest_goes_on(run: Run, machines: FakeMachines) -> None:
    found = run(area("one", passing, losing(Loss.PANICKED), passing), area("two", passing))
    assert verdicts(found) == {
        "/one/case-0": Verdict.PASS,
        "/one/case-1": Verdict.FAIL,
        "/one/case-2": Verdict.PASS,
        "/two/case-0": Verdict.PASS,
    }
    failure = found["/one/case-1"]
    assert failure.reason == "the kernel panicked: what was seen of it"
    assert failure.evidence == f"--- the last operations\nact the last\n--- the serial console\n{SERIAL}"
    assert len(machines.started) == 2


def test_a_case_that_loses_its_emulator_once_is_judged(run: Run) -> None:
    assert verdicts(run(area("one", losing(Loss.EMULATOR_ENDED), passing))) == {
        "/one/case-0": Verdict.PASS,
        "/one/case-1": Verdict.PASS,
    }


def test_a_case_that_loses_its_emulator_twice_is_an_error(run: Run) -> None:
    found = run(area("one", losing(Loss.EMULATOR_ENDED, Loss.EMULATOR_ENDED), passing))
    assert list(verdicts(found).values()) == [Verdict.ERROR, Verdict.PASS]
    assert found["/one/case-0"].reason == "the emulator ended: what was seen of it"


@pytest.mark.parametrize(("sizes", "expected"), [((), (2 * MIB, GIB)), ((GIB,), (GIB,))])
def test_random_programs_are_units_of_each_pool_that_is_selected(
    run: Run, sizes: tuple[int, ...], expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def programs(host: Host, size: int, seed: int, operations: int, tell: Callable[[int], None]) -> Result:
        tell(8)
        asked.append((len(host.names("sys/kernel/mm/hugepages")), size, seed, operations))
        return Result(f"/random/{size}", Verdict.PASS)

    monkeypatch.setattr(random_run, "run_random_programs", programs)
    assert len(run(operations=7, selection=Selection(sizes=sizes))) == len(expected)
    assert sorted(asked) == [(2, size, 1, 7) for size in expected]
    assert sorted(run.told) == sorted(f"7 of 7 random operations on {format_size(size)}" for size in expected)
    assert sorted(name for name, _results in run.units) == sorted(f"random {format_size(size)}" for size in expected)


def test_each_minute_of_a_soak_is_a_unit_with_a_seed_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway_run, "soak_case", lambda seed: soak_case(seed, 0))
    monkeypatch.setattr(soak, "draw_race", _raising(ZeroDivisionError("drawn")))
    found = list(run.run.run(LiveWanted(minutes=3, seed=5), {}))
    assert sorted(result.name for result in found) == ["/soak/5", "/soak/6", "/soak/7"]
    assert sorted(run.units) == [(f"soak {number}", (f"/soak/{4 + number}",)) for number in (1, 2, 3)]


# --- in which order ---


def test_what_took_longest_the_last_time_comes_first(run: Run) -> None:
    run(*(area(name, passing) for name in "abc"), took={"/a/case-0": 20, "/b/case-0": 40, "/c/case-0": 30})
    assert [name for name, _results in run.units] == ["b once", "c once", "a once"]


def test_what_has_never_run_is_taken_for_a_second_for_each_of_its_cases(run: Run) -> None:
    run(area("a", passing), area("b", passing, passing), area("c", passing), took={"/a/case-0": 1.9, "/c/case-0": 2.1})
    assert [name for name, _results in run.units] == ["c once", "b once", "a once"]


def test_a_machine_takes_what_it_has_the_memory_for_before_it_is_replaced(run: Run, machines: FakeMachines) -> None:
    run(
        area("a", passing, sizes=Sizes.EACH),
        area("b", passing, sizes=Sizes.EACH),
        took={"/a/case-0/1G": 40, "/b/case-0/2M": 20},
    )
    assert [name for name, _results in run.units] == ["b 2M", "a 2M", "a 1G", "b 1G"]
    assert len(machines.started) == 2


def test_what_takes_least_comes_first_where_time_is_short(run: Run, machines: FakeMachines) -> None:
    areas = area("a", passing, passing, sizes=Sizes.EACH), area("b", passing, passing), area("c", passing)
    took = {
        "/a/case-0/2M": 0.4,
        "/a/case-1/2M": 9,
        "/a/case-0/1G": 3,
        "/a/case-1/1G": 30,
        "/b/case-1": 2,
        "/c/case-0": 8,
    }
    wanted = LiveWanted(areas, operations=7, shortest_first=True)
    units = list(wanted.units((2 * MIB, GIB), (2 * MIB,), {**took, "/b/case-0": 0.1, "/random/2M": 20.0}))
    told = sorted((unit.step, unit.name, [task.name for task in unit.tasks]) for unit in units)
    assert told == [
        (0, "a 2M", ["/a/case-0/2M"]),
        (0, "b once", ["/b/case-0"]),
        (2, "a 1G", ["/a/case-0/1G"]),
        (2, "b once", ["/b/case-1"]),
        (4, "a 2M", ["/a/case-1/2M"]),
        (4, "c once", ["/c/case-0"]),
        (5, "a 1G", ["/a/case-1/1G"]),
        (5, "random 2M", ["/random/2M"]),
    ]
    found = list(run.run.run(replace(wanted, operations=0), took | {"/b/case-0": 0.1}))
    assert [result.name for result in found][:2] in (
        ["/a/case-0/2M", "/b/case-0"],
        ["/b/case-0", "/a/case-0/2M"],
    )
    assert found[-1].name == "/a/case-1/1G"
    # it is not replaced by one for gigantic pages and back for each step
    assert len(machines.started) <= 4


def test_what_no_time_is_left_for_is_a_skip(machines: FakeMachines, tmp_path: Path) -> None:
    told: list[bool] = []
    run = ThrowawayRun(plan(tmp_path), 1, lambda *_: None, limit=_Over(told))

    def takes_all_of_it(_live: Live) -> None:
        told.append(True)

    found = {result.name: result for result in run.run(LiveWanted((area("a", takes_all_of_it, passing),)), {})}
    assert found["/a/case-0"].verdict is Verdict.PASS
    assert (found["/a/case-1"].verdict, found["/a/case-1"].reasons) == (Verdict.SKIP, (NO_TIME,))
    assert set(run.seconds) == {"/a/case-0"}
    assert len(machines.started) == 1


class _Over(TimeLimit):
    """Is over when something was told."""

    def __init__(self, told: list[bool]) -> None:
        super().__init__(None)
        self._told = told

    @property
    def is_over(self) -> bool:
        return bool(self._told)


def test_a_host_without_room_for_two_large_machines_has_one(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway_run, "free_memory", lambda: 14 * GIB)
    two = Run(tmp_path, 2)
    found = two(*(area(name, passing, sizes=Sizes.EACH) for name in "abcd"))
    assert len(found) == 8
    assert [machine.machine.memory for machine in machines.started].count(LARGE_NODES) == 1


def test_what_results_took_is_told_for_the_next_time(run: Run) -> None:
    run(area("a", passing), area("b", failing))
    assert set(run.run.seconds) == {"/a/case-0", "/b/case-0"}
    assert all(0 <= seconds < 60 for seconds in run.run.seconds.values())


def test_several_machines_share_the_units_and_each_is_run_once(machines: FakeMachines, tmp_path: Path) -> None:
    both_run = threading.Barrier(2, timeout=30)

    def meets(_live: Live) -> None:
        both_run.wait()

    run = Run(tmp_path, count=2)
    assert len(run(*(area(name, meets) for name in "abcd"))) == 4
    assert sorted(name for name, _results in run.units) == [f"{name} once" for name in "abcd"]
    assert len(machines.started) == 2
    assert not machines.running


def test_machines_begin_with_units_that_need_other_memory(machines: FakeMachines, tmp_path: Path) -> None:
    both_run = threading.Barrier(2, timeout=30)

    def meets(_live: Live) -> None:
        both_run.wait()

    run = Run(tmp_path, count=2)
    assert len(run(*(area(name, meets, sizes=Sizes.EACH) for name in "ab"))) == 4
    assert sorted(machine.machine.memory for machine in machines.started) == [NODES, LARGE_NODES]


def test_memory_is_cleared_as_it_is_allocated_but_for_areas_that_look_whether_others_do(
    run: Run, machines: FakeMachines
) -> None:
    run(area("a", passing), area("b", passing, uncleared=True), area("c", passing))
    words = [machine.machine.command_line for machine in machines.started]
    assert ["init_on_alloc=1" in line for line in words] == [True, False]


def test_gigantic_pages_are_not_cleared_as_they_are_allocated(run: Run, machines: FakeMachines) -> None:
    run(area("a", passing, sizes=Sizes.EACH))
    words = {machine.machine.memory: machine.machine.command_line for machine in machines.started}
    assert "init_on_alloc=1" in words[NODES]
    assert "init_on_alloc=0" in words[LARGE_NODES]


def test_the_next_machine_begins_with_the_longest_that_needs_other_memory(
    machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_run = threading.Barrier(2, timeout=30)

    def meets(_live: Live) -> None:
        both_run.wait()

    def programs(_host: Host, size: int, seed: int, operations: int, tell: Callable[[int], None]) -> Result:
        tell(1)
        both_run.wait()
        return Result(f"/random/{size}/{seed}/{operations}", Verdict.PASS)

    monkeypatch.setattr(random_run, "run_random_programs", programs)
    areas = area("once", meets), area("each", passing, sizes=Sizes.EACH)
    run = Run(tmp_path, count=2)
    run(*areas, selection=Selection(sizes=(GIB,)), took={"/each/case-0/1G": 1, "/random/1G": 20}, operations=7)
    assert [machine.machine.memory for machine in machines.started[:2]] == [NODES, (6 * GIB, 5 * GIB)]


# --- what is chosen, and what there is not ---


def test_only_what_is_selected_runs(run: Run) -> None:
    chosen = Selection(("/each/case-1", "/once/*"), (2 * MIB,))
    found = run(area("once", passing), area("each", passing, passing, sizes=Sizes.EACH), selection=chosen)
    assert set(found) == {"/once/case-0", "/each/case-1/2M"}


def test_a_page_size_that_only_another_cpu_has_is_a_skip(run: Run) -> None:
    found = run(area("once", passing), area("each", passing, sizes=Sizes.EACH), selection=Selection(sizes=(16 * MIB,)))
    assert verdicts(found) == {"/once/case-0": Verdict.PASS, "/each/case-0": Verdict.SKIP}


def test_a_page_size_that_the_machine_has_not_is_a_skip(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (*BOTH, 16 * GIB)
    monkeypatch.setattr(judge_module, "running_mmu", lambda _host: SimpleNamespace(hugetlb=sizes))
    found = run(area("each", passing, sizes=Sizes.EACH), selection=Selection(sizes=(2 * MIB, 16 * GIB)))
    assert verdicts(found) == {"/each/case-0/2M": Verdict.PASS, "/each/case-0/16G": Verdict.SKIP}
    assert found["/each/case-0/16G"].reason == "this machine has no pages of 16G"
    assert run.run.boots == 1, "no machine with memory for such pages"


def test_a_case_for_no_page_size_of_the_machine_is_one_skip(run: Run) -> None:
    found = run(area("none", passing, sizes=Sizes.GIGANTIC), selection=Selection(sizes=(2 * MIB,)))
    assert verdicts(found) == {"/none/case-0": Verdict.SKIP}
    assert found["/none/case-0"].reason == f"for {Sizes.GIGANTIC.value} alone, of which the run has none"


def test_random_operations_on_no_pool_are_one_skip(run: Run) -> None:
    found = run(operations=5, selection=Selection(sizes=(16 * MIB,)))
    assert verdicts(found) == {"/random": Verdict.SKIP}
    assert found["/random"].reason == "for pools alone, of which the run has none"


def test_without_hugetlb_only_what_needs_it_is_skipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throwaway_run, "page_sizes", lambda _host: [])
    monkeypatch.setattr(throwaway_run, "read_pool_view", lambda _host: SimpleNamespace(pools={}))
    found = run(area("once", passing), area("each", passing, passing, sizes=Sizes.EACH), operations=5)
    assert verdicts(found) == {
        "/once/case-0": Verdict.PASS,
        "/each/case-0": Verdict.SKIP,
        "/each/case-1": Verdict.SKIP,
        "/random": Verdict.SKIP,
    }
    assert "no hugetlb" in found["/each/case-0"].reason
    assert "no hugetlb" in found["/random"].reason


# --- how it ends ---


def test_a_kernel_that_does_not_come_up_is_told_and_nothing_runs(run: Run, machines: FakeMachines) -> None:
    machines.at_boot = [lost(Loss.PANICKED)]
    with pytest.raises(MachineLost, match="the kernel panicked"):
        run(area("once", passing))
    assert not run.units


def test_what_goes_wrong_in_a_worker_is_raised(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_host: Host) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(throwaway_run, "read_pool_view", broken)
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        run(area("once", passing))


def test_what_goes_wrong_at_the_end_of_a_machine_is_raised(run: Run, machines: FakeMachines) -> None:
    def broken() -> None:
        raise OSError(28, "No space left on device")

    machines.on_end = broken
    with pytest.raises(OSError, match="No space left"):
        run(area("once", passing))


def test_a_caller_that_stops_listening_ends_the_machines(machines: FakeMachines, tmp_path: Path) -> None:
    let_go = threading.Event()

    def waits(live: Live) -> None:
        # as whoever waits for an agent: the end of the machine ends it
        while not backend_of(live.host).running.killed.wait(0.01):
            if let_go.is_set():
                return

    run = Run(tmp_path, count=2)
    results = run.run.run(LiveWanted((area("a", passing, waits, passing), area("b", waits, passing))), {})
    first = next(results)
    assert first.name == "/a/case-0"
    results.close()  # type: ignore[attr-defined]
    let_go.set()
    assert not machines.running
    assert not run.units
    assert not any("_work" in thread.name for thread in threading.enumerate())


def test_a_run_that_is_stopped_while_it_goes_on_ends_without_an_error(run: Run, machines: FakeMachines) -> None:
    def stops(_live: Live) -> None:
        run.run.stop()

    assert run(area("a", passing, stops, passing), area("b", passing), took={"/a/case-0": 99}).keys() == {"/a/case-0"}
    assert len(machines.started) == 1


def test_a_run_that_is_stopped_while_a_machine_boots_ends(run: Run, machines: FakeMachines) -> None:
    machines.stop_at_boot = run.run.stop
    assert verdicts(run(area("a", passing))) == {}
    assert not run.units


def test_an_area_keeps_what_is_around_it_for_its_cases(run: Run) -> None:
    told = []

    @contextmanager
    def around(_host: Host) -> Iterator[None]:
        told.append("begun")
        yield

    run(area("a", passing, passing, around=around))
    assert told == ["begun"]
