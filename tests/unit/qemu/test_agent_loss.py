"""How a machine was lost, by what its emulator printed and how it ended. The emulator is a script."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hugepage_qa.process.child import PIPE, Child
from hugepage_qa.qemu import agent_machine, emulator
from hugepage_qa.qemu.agent_machine import RunningMachine
from hugepage_qa.qemu.emulator import Look
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine

MACHINE = VirtualMachine(KernelImage(Path("vmlinuz"), "x86_64", "6.1.0", None), "max", (1 << 30,))
PANIC = "[    1.5] Kernel panic - not syncing: Fatal exception in interrupt"
LOCKUP = "[  22.9] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [actor:77]"
FOREVER = "exec sleep 600"

Start = Callable[[str], RunningMachine]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_machine, "PANIC_SECONDS", 2.0)
    monkeypatch.setattr(agent_machine, "_END_SECONDS", 1.0)


@pytest.fixture
def cpu_share(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return has(share): what of a CPU emulators have from now on, and wait for the rest of the time."""

    def has(share: float) -> None:
        began = time.monotonic()

        def look(_pid: int) -> Look:
            seconds = time.monotonic() - began
            return Look(share * seconds, (1 - share) * seconds, 0)

        monkeypatch.setattr(emulator, "look_at", look)

    return has


@pytest.fixture
def start(cpu_share: Callable[[float], None]) -> Iterator[Start]:
    """Return start(script): a machine whose emulator is that shell script."""
    cpu_share(1.0)
    with ExitStack() as stack:

        def run(script: str) -> RunningMachine:
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            with theirs:
                child = Child(["/bin/sh", "-c", script], output=PIPE, errors=PIPE, standard_input=theirs.fileno())
            return stack.enter_context(RunningMachine(MACHINE, child, ours))

        yield run


def lost_as(running: RunningMachine) -> MachineLost:
    """Return how a machine was lost that is seen to be so without a line that is cut."""
    end = time.monotonic() + 20
    while (lost := running.find_loss()) is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    return lost


def wait_for(running: RunningMachine, printed: str) -> None:
    end = time.monotonic() + 20
    while printed not in running.serial:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_machine_that_lives_is_not_lost(start: Start) -> None:
    running = start(f"echo booted; {FOREVER}")
    wait_for(running, "booted\n")
    assert running.find_loss() is None


def test_a_panic_is_what_the_kernel_did_and_its_back_trace_is_told(start: Start) -> None:
    running = start(f"echo '{PANIC}'; sleep 0.2; echo ' Call Trace:'; sleep 0.1; echo ' the last line'")
    lost = lost_as(running)
    assert lost.loss is Loss.PANICKED
    assert str(lost) == f"the kernel panicked: {PANIC[10:].strip()}"
    assert lost.serial.endswith("Call Trace:\n the last line\n")


def test_the_line_of_a_panic_is_told_whole(start: Start) -> None:
    running = start(f"printf '{PANIC[:40]}'; sleep 0.5; printf '%s\\r\\n' '{PANIC[40:]}'; {FOREVER}")
    wait_for(running, "not sync")
    assert str(lost_as(running)).endswith("not syncing: Fatal exception in interrupt")


def test_a_panic_comes_before_what_else_ended(start: Start) -> None:
    running = start(f"echo '{LOCKUP}'; echo '@hugepage-qa the agent ended with exit code 3'; echo '{PANIC}'; exit 1")
    assert lost_as(running).loss is Loss.PANICKED


def test_a_panic_with_impossible_flags_is_the_emulators(start: Start) -> None:
    running = start(f"echo 'RSP: 0018:ffff EFLAGS: 7fc00246'; echo '{PANIC}'")
    lost = lost_as(running)
    assert lost.loss is Loss.EMULATION_BROKE
    assert "EFLAGS 7fc00246" in str(lost)


def test_a_panic_with_possible_flags_is_the_kernels(start: Start) -> None:
    assert lost_as(start(f"echo 'RSP: 0018:ffff EFLAGS: 00010246'; echo '{PANIC}'")).loss is Loss.PANICKED


def test_an_agent_that_ends_is_told_with_how_it_ended(start: Start) -> None:
    lost = lost_as(start(f"printf '@hugepage-qa the agent was killed by signal 9\\r\\n'; {FOREVER}"))
    assert lost.loss is Loss.AGENT_ENDED
    assert str(lost) == "the agent in the machine ended: was killed by signal 9"


def test_an_emulator_that_ends_is_told_with_what_it_said_last(start: Start) -> None:
    lost = lost_as(start("echo booting; echo first >&2; echo 'qemu: cannot set up guest memory' >&2; exit 1"))
    assert lost.loss is Loss.EMULATOR_ENDED
    assert str(lost) == "the emulator ended: qemu: cannot set up guest memory"
    assert lost.serial == "booting\n"


def test_an_emulator_that_says_nothing_is_told_with_its_exit_code(start: Start) -> None:
    assert str(lost_as(start("exit 7"))) == "the emulator ended: exit code 7"
    running = start(FOREVER)
    running.kill()
    assert str(lost_as(running)) == "the emulator ended: exit code -9"


def test_a_lockup_is_one_where_no_answer_comes(start: Start) -> None:
    running = start(f"echo '{LOCKUP}'; {FOREVER}")
    wait_for(running, "lockup")
    assert running.find_loss() is None, "it may go on"
    lost = running.lost_by("in 900 s")
    assert lost is not None
    assert (lost.loss, str(lost)) == (Loss.LOCKED_UP, f"the kernel locked up: {LOCKUP}")


@pytest.mark.parametrize("why", ["softlockup: hung tasks", "RCU Stall", "Hard LOCKUP"])
def test_a_panic_for_a_lockup_is_none_where_the_machine_is_not_let_run(
    why: str, start: Start, cpu_share: Callable[[float], None]
) -> None:
    script = f"sleep 0.3; echo '{LOCKUP}'; echo '[ 1.0] Kernel panic - not syncing: {why}'"
    assert lost_as(start(script)).loss is Loss.PANICKED
    cpu_share(0.2)
    assert lost_as(start(script)).loss is Loss.STARVED


def test_a_lockup_of_a_machine_that_is_not_let_run_is_none(start: Start, cpu_share: Callable[[float], None]) -> None:
    cpu_share(0.2)
    running = start(f"sleep 0.3; echo '{LOCKUP}'; {FOREVER}")
    wait_for(running, "lockup")
    lost = running.lost_by("in 900 s")
    assert lost is not None and lost.loss is Loss.STARVED
    assert str(lost).startswith("the machine was starved: the emulator had 0 s of a CPU in ")


@pytest.mark.parametrize(
    "line",
    [
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
        "watchdog: Watchdog detected hard LOCKUP on cpu 0",
        "BUG: soft lockup - CPU#0 stuck for 26s!",
    ],
)
def test_every_kind_of_lockup_is_one(start: Start, line: str) -> None:
    running = start(f"echo '{line}'; {FOREVER}")
    wait_for(running, line)
    lost = running.lost_by("in 900 s")
    assert lost is not None and lost.loss is Loss.LOCKED_UP


def test_a_machine_that_says_nothing_gave_no_answer(start: Start) -> None:
    running = start(f"echo booted; {FOREVER}")
    wait_for(running, "booted")
    lost = running.lost_by("in 900 s")
    assert lost is not None
    assert (lost.loss, str(lost), lost.serial) == (Loss.NO_ANSWER, "no answer came: in 900 s", "booted\n")


def test_a_line_that_is_cut_shortly_before_the_emulator_ends_is_its_end(start: Start) -> None:
    running = start("exec <&-; sleep 0.5; echo 'the last word' >&2; exit 1")
    with pytest.raises(MachineLost) as caught:
        running.channel.ask("r", "/file")
    assert (caught.value.loss, str(caught.value)) == (Loss.EMULATOR_ENDED, "the emulator ended: the last word")


def test_its_agent_tells_the_size_of_a_page_when_it_has_come_up(start: Start) -> None:
    running = start(f"sleep 0.2; printf '\\000\\000\\000\\012k\\000\\000\\000\\00465536' >&0; {FOREVER}")
    running.await_agent()
    assert running.base_page == 65536


def test_a_machine_that_does_not_come_up_is_lost(start: Start) -> None:
    with pytest.raises(MachineLost, match="the kernel panicked"):
        start(f"echo '{PANIC}'").await_agent()


def test_the_console_is_kept_to_its_last_part(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator, "OUTPUT_LIMIT", 1000)
    running = start(f"seq 100000; echo end; {FOREVER}")
    wait_for(running, "end\n")
    assert len(running.serial) == 1000


def test_a_closed_machine_is_gone_with_all_that_it_printed(start: Start) -> None:
    running = start(f"seq 20000; echo end; {FOREVER}")
    wait_for(running, "end\n")
    running.kill()
    assert str(lost_as(running)) == "the emulator ended: exit code -9"
    assert running.serial.startswith("1\n2\n")
