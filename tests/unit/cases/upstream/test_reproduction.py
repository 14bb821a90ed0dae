"""Reproducers run on a machine that nobody boots: what the ends of a program and the words of files mean."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.cases.fake_machines import lost

from hugepage_qa.cases.upstream import reproduction
from hugepage_qa.cases.upstream.reproduction import Answer, BugReport, Reading, compare, reproduce
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.qemu.virtual_machine import VirtualMachine

KERNEL = KernelImage(Path("vmlinuz"), "x86_64", "6.12.5-amd64", None)
PROGRAM = b"the program"


class FakeMachine:
    """A machine and the channel to its agent: the program prints ``prints`` and ends with ``status`` as of wait(2).

    ``files`` are by path; a program without a status never ends.
    """

    def __init__(self, status: int | None = 0, prints: str = "", files: dict[str, str] | None = None) -> None:
        self.channel = self
        self.serial = "[    0.000000] the kernel boots\r\n"
        self.stored: dict[str, bytes] = {}
        self.started: VirtualMachine | None = None
        self._status, self._prints, self._files = status, prints, files or {}

    def await_agent(self) -> None:
        """Be there."""

    def ask(self, letter: str, *fields: str | bytes | int) -> list[bytes]:
        """Answer as the agent does."""
        match letter, fields:
            case "f", (str() as path, int() as offset, bytes() as content):
                self.stored[path] = self.stored.get(path, b"").ljust(offset, b"\0") + content
            case "w", ("/dev/console", bytes() as text):
                self.serial += text.decode().replace("\n", "\r\n")
            case "a", (path,):
                assert self.stored[str(path)] == PROGRAM
                self.serial += self._prints.replace("\n", "\r\n")
                return [b"0", b"77"]
            case "r", ("/proc/77/stat",):
                state = "R" if self._status is None else "Z"
                numbers = ["0"] * 48
                return [f"77 (the (program) {state} {' '.join(numbers)} {self._status}\n".encode()]
        return []

    def ask_many(self, requests: Sequence[tuple[str, tuple[str, ...]]]) -> list[list[bytes] | OSError]:
        """Answer reads of files."""
        paths = [fields[0] for _letter, fields in requests]
        return [[self._files[path].encode()] if path in self._files else FileNotFoundError(2, path) for path in paths]


Machines = list[FakeMachine | MachineLost]


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    """What is booted one after the other."""
    program = tmp_path / "program"
    program.write_bytes(PROGRAM)
    waiting: Machines = []

    @contextmanager
    def start(machine: VirtualMachine, _cache: Path) -> Iterator[FakeMachine]:
        one = waiting.pop(0)
        if isinstance(one, MachineLost):
            raise one
        one.started = machine
        yield one

    monkeypatch.setattr(reproduction, "start_agent_machine", start)
    monkeypatch.setattr(reproduction, "build_static", lambda _source, _architecture: program)
    return waiting


def report(directory: Path, text: str = "memory: 1G,2G\nwords: hugepages=2\n", *, program: bool = True) -> BugReport:
    (directory / "reproducer.yaml").write_text(text)
    if program:
        (directory / "reproducer.c").write_text("int main(void);\n")
    return BugReport("made-up", directory)


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (0, Answer.RIGHT, ""),
        (1 << 8, Answer.BUG, ""),
        (2 << 8, Answer.UNDECIDED, "no pages"),
        (3 << 8, Answer.UNDECIDED, "it ended with exit code 3"),
        (7, Answer.UNDECIDED, "it ended with exit code -7"),
    ],
)
def test_the_end_of_the_program_is_the_answer(
    machines: Machines, tmp_path: Path, status: int, answer: Answer, reason: str
) -> None:
    machines.append(FakeMachine(status, "did it\n[  221.473142] watchdog: BUG: soft lockup\nno pages\n"))
    found = reproduce(report(tmp_path), KERNEL, tmp_path)
    assert (found.answer, found.reason) == (answer, reason)
    assert found.lines == ("did it", "no pages")


def test_the_machine_is_that_of_the_report(machines: Machines, tmp_path: Path) -> None:
    one = FakeMachine()
    machines.append(one)
    reproduce(report(tmp_path), KERNEL, tmp_path, "quiet")
    assert one.started is not None
    assert one.started.memory == (1 << 30, 2 << 30)
    assert one.started.command_line.split()[-2:] == ["hugepages=2", "quiet"]
    assert one.started.cpus == 1


def test_a_race_has_its_processors(machines: Machines, tmp_path: Path) -> None:
    one = FakeMachine()
    machines.append(one)
    reproduce(report(tmp_path, "memory: 1G\ncpus: 2\n"), KERNEL, tmp_path)
    assert one.started is not None
    assert one.started.cpus == 2


def test_a_program_that_does_not_end_decides_nothing(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "_RUN_SECONDS", 0.0)
    machines.append(FakeMachine(None))
    found = reproduce(report(tmp_path), KERNEL, tmp_path)
    assert (found.answer, found.reason) == (Answer.UNDECIDED, "it has not ended after 0 s")


def test_where_a_machine_is_lost_another_one_is_tried(machines: Machines, tmp_path: Path) -> None:
    machines += [lost(Loss.EMULATION_BROKE), lost(Loss.EMULATION_BROKE), FakeMachine(1 << 8)]
    assert reproduce(report(tmp_path), KERNEL, tmp_path).answer is Answer.BUG
    machines += [lost(Loss.EMULATION_BROKE), lost(Loss.PANICKED)]
    found = reproduce(report(tmp_path), KERNEL, tmp_path)
    assert (found.answer, found.reason) == (Answer.UNDECIDED, str(lost(Loss.PANICKED)))


READS = "memory: 1G\nwords: hugepages=2\nsince: '6.13'\nreads: {proc/sys/vm/nr_hugepages: {right: '2', wrong: '3'}}\n"


def test_a_kernel_without_the_parameter_is_not_booted(machines: Machines, tmp_path: Path) -> None:
    found = reproduce(report(tmp_path, READS, program=False), KERNEL, tmp_path)
    assert (found.answer, found.reason) == (Answer.UNDECIDED, "hugepages=2 is of kernels since 6.13")
    assert machines == []


@pytest.mark.parametrize(
    ("content", "answer"), [("2\n", Answer.RIGHT), ("3\n", Answer.BUG), ("32\n", Answer.UNDECIDED)]
)
def test_files_are_read_after_the_boot(machines: Machines, tmp_path: Path, content: str, answer: Answer) -> None:
    machines.append(FakeMachine(files={"/proc/sys/vm/nr_hugepages": content}))
    kernel = KernelImage(Path("vmlinuz"), "x86_64", "6.13.0", None)
    found = reproduce(report(tmp_path, READS, program=False), kernel, tmp_path)
    assert found.answer is answer
    assert found.lines == (f"proc/sys/vm/nr_hugepages: expected 2, found {content.strip()}",)


def test_what_is_neither_right_nor_wrong_decides_nothing() -> None:
    wanted = {"a": Reading("1", "0"), "b": Reading("[deny]", "[never]")}
    assert compare({"a": "1", "b": "always [deny] never"}, wanted).answer is Answer.RIGHT
    assert compare({"a": "0", "b": "always deny [never]"}, wanted).answer is Answer.BUG
    for found in ({"a": "0", "b": "[deny]"}, {"a": "1"}, {"a": "2", "b": "[deny]"}, {}):
        assert compare(found, wanted).answer is Answer.UNDECIDED
    assert compare({"a": "1"}, wanted).lines[1] == "b: expected [deny], found no such file"
