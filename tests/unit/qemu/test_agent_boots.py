"""Real machines of the distribution's kernel with an agent: cases are judged there, and how one is lost is told."""

from collections.abc import Iterator

import pytest

from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.live_machine import LiveMachine, MachineKind, MachinePlan, Task, Unit
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import LiveWanted, ThrowawayRun
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.agent_machine import start_agent_machine
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.packages import cache_directory
from hugepage_qa.sizes import GIB, MIB

pytestmark = pytest.mark.boots

SYSRQ = "proc/sysrq-trigger"


@pytest.fixture(scope="module")
def plan() -> MachinePlan:
    return MachinePlan(find_kernel("x86_64", Settings()), "max", cache_directory())


def test_cases_are_judged_although_their_emulator_was_killed_once(
    plan: MachinePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    areas = list(live_areas(("memory/memfd",)))
    run = ThrowawayRun(plan, 1, lambda _name, _results, _seconds: None)
    judge, judged = LiveMachine.judge, []

    def judge_and_kill(machine: LiveMachine, task: Task, unit: Unit) -> Result | None:
        judged.append(task.name)
        if len(judged) == 2:
            assert machine._running is not None
            machine._running.kill()
        return judge(machine, task, unit)

    monkeypatch.setattr(LiveMachine, "judge", judge_and_kill)
    results = list(run.run(LiveWanted(areas, Selection(sizes=(2 * MIB,))), {}))
    assert {result.verdict for result in results} <= {Verdict.PASS, Verdict.KNOWN, Verdict.SKIP}, results
    assert {result.name for result in results} >= {f"/memory/memfd/{case.name}/2M" for case in areas[0].cases[:2]}
    assert run.boots == 2


@pytest.fixture
def live(plan: MachinePlan) -> Iterator[LiveMachine]:
    machine = LiveMachine(plan)
    yield machine
    machine.close()


def test_a_panic_fails_what_is_judged_with_its_line_and_what_was_done(live: LiveMachine) -> None:
    def panic(host: Host) -> Result:
        host.write(SYSRQ, "c")
        return Result("/panic", Verdict.PASS)

    task = Task("/panic", panic)
    result = live.judge(task, Unit("unit", MachineKind((GIB,)), (task,)))
    assert result is not None
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith("the kernel panicked: Kernel panic - not syncing: sysrq triggered crash")
    assert f'write ["{SYSRQ}", "c"]' in result.evidence
    assert "Call Trace" in result.evidence
    assert live.boots == 1


def test_an_agent_that_is_killed_is_told_and_its_machine_ends(plan: MachinePlan) -> None:
    with start_agent_machine(plan.machine(MachineKind((GIB,))), plan.cache) as running:
        running.await_agent()
        assert running.base_page == 4096
        # kills all but the init, which the agent is a child of
        with pytest.raises(MachineLost) as caught:
            for _ in range(100):
                running.channel.ask("w", f"/{SYSRQ}", "i")
    assert (caught.value.loss, str(caught.value)) == (
        Loss.AGENT_ENDED,
        "the agent in the machine ended: was killed by signal 9",
    )
