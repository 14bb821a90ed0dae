"""How a boot ends, with a fake QEMU that does what the command line under test says."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.unit.qemu.conftest import OFFER

from hugepage_qa.errors import InputError
from hugepage_qa.qemu import emulator, probe_machine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.emulator import OUTPUT_LIMIT, Look, Stopped
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine, full_command_line, host_memory, our_words
from hugepage_qa.sizes import GIB

Install = Callable[[Path, str, str], None]


# the last argument is the kernel command line; what follows "do:" in it is what the machine does
QEMU = r"""
words="${@: -1}"
capture() { printf '@hugepage-qa {"path":"proc/version","text":"Linux\\n"}\r\n@hugepage-qa {"end":1}\r\n'; }
panic() { echo '[ 1.0] Kernel panic - not syncing: System is deadlocked on memory'; }
echo $$ >"$PID_FILE"
case "$words" in
*do:good) capture ;;
*do:panic) panic ;;
*do:oops) echo '[ 1.0] RSP: 0018:ff4b5cbd00013c20 EFLAGS: 00010246'; panic ;;
*do:no-timer) echo "[ 1.0] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot with apic=debug" ;;
*do:late-int3) echo '[ 2.2] Oops: int3: 0000 [#1] SMP NOPTI'; echo '[ 2.2] Code: 90 f3 0f 1e fa 66 <90> c3'; panic ;;
*do:int3) echo '[ 2.2] Oops: int3: 0000 [#1] SMP NOPTI'; echo '[ 2.2] Code: 90 f3 0f 1e fa cc <90> c3'; panic ;;
*do:impossible) echo '[ 1.0] RSP: 0018:ff4b5cbd00013c20 EFLAGS: 92320362'; panic ;;
*do:lock-up-panic-and-spin) echo "BUG: soft lockup"; sleep 0.3; panic; exec sleep 60 ;;
*do:panic-and-spin) panic; exec sleep 60 ;;
*do:hang) echo "booting"; exec sleep 60 ;;
*do:slow) for i in $(seq "$STEPS"); do echo "booting $i"; sleep 0.2; done; capture ;;
*do:lock-up) echo "watchdog: BUG: soft lockup - CPU#0 stuck for 22s!"; while :; do echo again; sleep 0.1; done ;;
*do:chatter) while :; do echo booting; sleep 0.1; done ;;
*do:hang-after) capture; exec sleep 60 ;;
*do:refuse) echo "qemu: warning: this" >&2; exit 1 ;;
*do:die) kill -SEGV $$ ;;
*do:garble) echo '@hugepage-qa {"path":' ;;
*do:flood) exec yes ;;
esac
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install, bzimage: Callable[[str], bytes]) -> Lab:
    install(tmp_path / "bin", "qemu-system-x86_64", f"{OFFER}{QEMU}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"BUSYBOX")
    monkeypatch.setattr(probe_machine, "static_busybox", lambda *_, **__: busybox)
    (tmp_path / "kernel").write_bytes(bzimage("6.12.5-qa"))
    return Lab(tmp_path / "cache", deadline=10, accelerator="tcg")


def machine(tmp_path: Path, words: str, memory: tuple[int, ...] = (GIB,)) -> VirtualMachine:
    return VirtualMachine(KernelImage(tmp_path / "kernel", "x86_64", "6.12.5-qa", None), "max", memory, words)


def loss_of(lab: Lab, machine: VirtualMachine) -> MachineLost:
    with pytest.raises(MachineLost) as caught:
        lab.boot(machine)
    return caught.value


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("does", "loss", "detail"),
    [
        ("panic", Loss.PANICKED, "Kernel panic - not syncing: System is deadlocked on memory"),
        ("oops", Loss.PANICKED, "Kernel panic - not syncing: System is deadlocked on memory"),
        ("impossible", Loss.EMULATION_BROKE, "EFLAGS 92320362"),
        ("late-int3", Loss.EMULATION_BROKE, "a trap for int3 was taken where 66 stands"),
        ("int3", Loss.PANICKED, "Kernel panic - not syncing"),
        ("no-timer", Loss.EMULATION_BROKE, "IO-APIC + timer doesn't work!"),
        ("refuse", Loss.EMULATOR_ENDED, "qemu: warning: this"),
        ("die", Loss.EMULATOR_ENDED, "exit code -11"),
        ("garble", Loss.GARBLED, "not JSON"),
        ("nothing", Loss.GARBLED, "no end marker after 0 files; last: nothing was printed"),
        ("flood", Loss.GARBLED, f"printed more than {OUTPUT_LIMIT} bytes"),
    ],
)
def test_how_a_boot_is_lost(lab: Lab, tmp_path: Path, does: str, loss: Loss, detail: str) -> None:
    lost = loss_of(lab, machine(tmp_path, f"do:{does}"))
    assert lost.loss is loss
    assert detail in str(lost)
    assert len(lost.serial) <= OUTPUT_LIMIT


#: seconds; a busy machine starts what is to print something later than the first of them
DEADLINES = (0.5, 5.0, 30.0)


@pytest.mark.parametrize(("does", "last"), [("hang", "booting"), ("hang-after", '{"end":1}')])
def test_deadline_kills(tmp_path: Path, lab: Lab, does: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for deadline in DEADLINES:
        monkeypatch.setattr(lab, "_deadline", deadline)
        began = time.monotonic()
        lost = loss_of(lab, machine(tmp_path, f"do:{does}"))
        if last in str(lost):
            break
    assert lost.loss is Loss.HUNG
    assert re.fullmatch(rf"hung: no power-off within \d+\.\d s: .*{re.escape(last)}", str(lost))
    # the machine itself would go on for 60 s
    assert time.monotonic() - began < 50
    assert not alive(int((tmp_path / "pid").read_text()))


def test_a_slow_machine_is_not_one_that_hangs(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    for deadline in (1, 10):
        monkeypatch.setattr(lab, "_deadline", deadline)
        # of 0.2 s each
        monkeypatch.setenv("STEPS", str(8 * deadline))
        with suppress(MachineLost):
            seconds = lab.boot(machine(tmp_path, "do:slow")).seconds
            break
    assert seconds > deadline


# what a machine prints after a lockup is no sign of life
@pytest.mark.parametrize(("does", "longest", "least", "most"), [("chatter", 3, 3, math.inf), ("lock-up", 200, 1, 100)])
def test_a_machine_that_goes_on_printing_hangs_all_the_same(
    lab: Lab, tmp_path: Path, does: str, longest: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes ``least`` to ``most`` deadlines."""
    monkeypatch.setattr(probe_machine, "LONGEST", longest)
    monkeypatch.setattr(emulator, "look_at", lambda _pid: Look(time.monotonic(), 0, 0))
    for deadline in DEADLINES:
        monkeypatch.setattr(lab, "_deadline", deadline)
        began = time.monotonic()
        assert loss_of(lab, machine(tmp_path, f"do:{does}")).loss is Loss.HUNG
        took = (time.monotonic() - began) / deadline
        if least <= took < most:
            break
    assert least <= took < most


def test_a_machine_that_locks_up_without_cpu_time_is_starved(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulator, "look_at", lambda _pid: Look(0.1 * time.monotonic(), time.monotonic(), 0))
    for deadline in DEADLINES:
        monkeypatch.setattr(lab, "_deadline", deadline)
        lost = loss_of(lab, machine(tmp_path, "do:lock-up"))
        if lost.loss is Loss.STARVED:
            break
    assert lost.loss is Loss.STARVED


@pytest.mark.parametrize("does", ["panic-and-spin", "lock-up-panic-and-spin"])
def test_panic_that_does_not_end_the_machine_does_not_take_the_whole_deadline(
    lab: Lab, tmp_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_machine, "PANIC_SECONDS", 0.2)
    began = time.monotonic()
    assert loss_of(lab, machine(tmp_path, f"do:{does}")).loss is Loss.PANICKED
    assert time.monotonic() - began < 5


def test_words_under_test_are_passed_on_as_they_are(lab: Lab, tmp_path: Path) -> None:
    words = 'hugepages=4 foo="a  b" $(touch x) \\ é do:good'
    boot = lab.boot(machine(tmp_path, words))
    assert boot.qemu_command[-1] == f"{our_words(find_board('x86_64'))} {words}"


def test_stop_ends_a_boot_in_another_thread(lab: Lab, tmp_path: Path) -> None:
    raised = []

    def boot() -> None:
        try:
            lab.boot(machine(tmp_path, "do:hang"))
        except Stopped as error:
            raised.append(error)

    thread = threading.Thread(target=boot)
    thread.start()
    pid_file = tmp_path / "pid"
    assert wait_for(lambda: pid_file.exists() and pid_file.read_text())
    lab.stop()
    thread.join(60)
    assert raised and not thread.is_alive()
    assert not alive(int(pid_file.read_text()))
    assert lab.boot(machine(tmp_path, "do:good")).tree, "a stopped lab can go on"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.usefixtures("lab")
def test_no_emulator_survives_us(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import sys; from hugepage_qa.process.child import PIPE, Child; from hugepage_qa.qemu.emulator import Emulator;"
        "Emulator(Child([sys.argv[1], 'do:hang'], output=PIPE, errors=PIPE)).wait(60)"
    )
    emulator = tmp_path / "bin" / "qemu-system-x86_64"
    ours = subprocess.Popen([sys.executable, "-c", script, str(emulator)], stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    assert wait_for(lambda: pid_file.exists() and pid_file.read_text())
    emulator_pid = int(pid_file.read_text())
    assert alive(emulator_pid)
    ours.send_signal(number)
    ours.wait(5)
    assert wait_for(lambda: not alive(emulator_pid))


def test_too_long_command_line_is_refused() -> None:
    board = find_board("x86_64")
    room = 2048 - 1 - len(our_words(board)) - 1
    assert len(full_command_line(board, "x" * room)) == 2047
    with pytest.raises(InputError, match=f"command line of {room + 1} bytes.*2048"):
        full_command_line(board, "x" * (room + 1))


def test_a_command_line_with_a_byte_that_no_character_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"command line '\\udcff hugepages=1': expected UTF-8"):
        full_command_line(find_board("x86_64"), "\udcff hugepages=1")


@pytest.mark.parametrize("memory", [(), (0,), (0, 0), (GIB, -1)])
def test_machine_without_memory_is_refused(lab: Lab, tmp_path: Path, memory: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="memory"):
        lab.boot(machine(tmp_path, "do:good", memory))


def test_s390x_has_one_node(tmp_path: Path, lab: Lab) -> None:
    with pytest.raises(InputError, match="at most 1"):
        lab.boot(VirtualMachine(KernelImage(tmp_path / "kernel", "s390x", "6.12.5", None), "max", (GIB, GIB)))


def test_missing_emulator_names_its_package(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"qemu-system-x86_64 is not installed.*: install qemu-system-x86 \(Debian\)"):
        lab.boot(machine(tmp_path, "do:good"))


def arguments(memory: tuple[int, ...], cpus: int = 1, accelerator: str = "tcg") -> str:
    kernel = KernelImage(Path("/k"), "x86_64", "6.12.5", None)
    one = VirtualMachine(kernel, "max", memory, "hugepages=1", cpus, accelerator)
    return " ".join(one.qemu_command(Path("/i")))


def test_one_node_needs_no_numa_options() -> None:
    assert f"-m {GIB}B -smp 2 " in arguments((GIB,), 2)
    assert "-numa" not in arguments((GIB,))


def test_nodes_get_their_memory_and_cpus() -> None:
    text = arguments((GIB, 0, 2 * GIB), 2)
    assert f"-m {3 * GIB}B -smp 2 " in text
    assert re.findall(r"-numa (\S+)", text) == [
        "node,nodeid=0,cpus=0,memdev=node0",
        "node,nodeid=1,cpus=1",
        "node,nodeid=2,memdev=node2",
    ]
    assert "prealloc" not in text


def test_memoryless_node_gets_a_cpu_of_its_own() -> None:
    text = arguments((0, GIB))
    assert "-smp 2 " in text
    assert re.findall(r"-numa (\S+)", text) == ["node,nodeid=0,cpus=1", "node,nodeid=1,cpus=0,memdev=node1"]


def test_accelerator_is_named_alone() -> None:
    assert "-accel kvm -cpu host " in arguments((GIB,), accelerator="kvm")
    assert "-accel tcg -cpu max,-erms,-fsrm,-svm,min-xlevel=0x8000000a,model=4,stepping=1 " in arguments((GIB,))
    assert "kvm:tcg" not in arguments((GIB,))


def test_host_memory_counts_pages_that_the_kernel_zeroes() -> None:
    plain, pages = (host_memory((GIB,), words) for words in ("quiet", "hugepages=1"))
    assert plain < GIB < pages


def test_a_machine_shows_itself_and_powers_off(lab: Lab, tmp_path: Path) -> None:
    boot = lab.boot(machine(tmp_path, "do:good"))
    assert boot.tree.read("proc/version") == "Linux\n"
    assert '{"end":1}' in boot.serial


def test_an_emulator_under_which_nothing_comes_up_is_tried_once(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def choose_accelerator(*_arguments: object, **_options: object) -> str:
        tried.append("once")
        raise NotOffered("qemu-kvm has no -accel tcg")

    monkeypatch.setattr(lab, "_forced", None)
    monkeypatch.setattr(probe_machine, "choose_accelerator", choose_accelerator)
    for _ in range(2):
        with pytest.raises(NotOffered, match="qemu-kvm has no -accel tcg"):
            lab.boot(machine(tmp_path, "do:good"))
    assert tried == ["once"]
