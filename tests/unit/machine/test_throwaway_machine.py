"""A throwaway machine does what the real one does, and says the same. The agent is real, and no machine boots.

It is a process of this machine: it gets no disk, no place outside of the directory of the test, and mounts nothing.
"""

import errno
import gzip
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from tests.unit.process.local_agent import LocalAgent, actor_program, start_agent

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.machine import throwaway_machine
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.swap_file import MAGIC, swap_header
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.process import actor_link
from hugepage_qa.process.actor_link import ActorGone, ActorStarved
from hugepage_qa.process.static_program import Compiler
from hugepage_qa.process.text_program_build import Recipe, loaded_with
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.sizes import MIB

Backend = RealMachine | ThrowawayMachine
CONFIG = {"CONFIG_CMA": "y"}


@pytest.fixture
def agent() -> Iterator[LocalAgent]:
    with start_agent() as started:
        yield started


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine has all that it makes, below the directory of the test."""
    root = tmp_path / "machine"
    (root / "tmp").mkdir(parents=True)
    (root / "disk").mkdir()
    monkeypatch.setattr(throwaway_machine, "_SCRATCH", str(root / "tmp"))
    monkeypatch.setattr(throwaway_machine, "_DISK", str(root / "disk"))
    monkeypatch.setattr(throwaway_machine, "_DISK_DEVICE", str(root / "no-such-device"))
    monkeypatch.setattr(throwaway_machine, "_ACTOR", str(actor_program()))
    monkeypatch.setattr(
        throwaway_machine,
        "loaded_with",
        lambda program, compiler: {f"{root}{path}": file for path, file in loaded_with(program, compiler).items()},
    )
    return root


class NeverStarved:
    """An emulator that has a CPU to itself."""

    @property
    def seconds(self) -> float:
        """The CPU time that it has had."""
        return time.monotonic()


def boot(agent: LocalAgent, scratch: Path, config: dict[str, str] | None = None) -> ThrowawayMachine:
    """Return the machine behind ``agent``."""
    kernel = KernelImage(Path("vmlinuz"), os.uname().machine, os.uname().release, config)
    running: Any = SimpleNamespace(
        machine=SimpleNamespace(kernel=kernel),
        base_page=agent.base_page,
        channel=agent.channel,
        starvation=NeverStarved(),
    )
    scratch.mkdir(exist_ok=True)
    return ThrowawayMachine(running, scratch)


@pytest.fixture
def machine(agent: LocalAgent, place: Path, tmp_path: Path) -> ThrowawayMachine:
    assert place.is_dir()
    return boot(agent, tmp_path / "scratch", CONFIG)


@pytest.fixture
def disk(machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch) -> ThrowawayMachine:
    """The machine, whose directory for a disk is taken for one."""
    monkeypatch.setattr(machine, "_disk_refusal", "")
    return machine


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealMachine]:
    (tmp_path / "real").mkdir()
    with ExitStack() as stack:
        yield RealMachine(tmp_path / "real", stack)


@pytest.fixture(params=["throwaway", "real"])
def either(request: pytest.FixtureRequest) -> Backend:
    """One machine after the other."""
    found: Backend = request.getfixturevalue("machine" if request.param == "throwaway" else "real")
    return found


def outcome(backend: Backend, operation: str, *arguments: Any) -> object:
    """Return what an operation returns, or the errno that it is refused with."""
    try:
        return backend.perform(operation, arguments)
    except OSError as error:
        return type(error), error.errno


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files of every kind; a path as a Host takes it has no leading slash."""
    made = tmp_path / "files"
    (made / "empty").mkdir(parents=True)
    (made / "text").write_bytes(b"one\r\ntwo\n\n")
    (made / "binary").write_bytes(bytes(range(256)))
    (made / "link").symlink_to("text")
    (made / "dangling").symlink_to("none")
    Path(os.fsdecode(os.fsencode(made) + b"/\xff \n")).touch()
    return made


def below(path: Path) -> str:
    return str(path).removeprefix("/")


# --- files ---


@pytest.mark.parametrize("operation", ["read", "observe"])
@pytest.mark.parametrize("name", ["text", "binary", "link", "dangling", "none", "empty", "text/none"])
def test_files_are_read_as_on_the_real_machine(
    machine: ThrowawayMachine, real: RealMachine, files: Path, operation: str, name: str
) -> None:
    found = outcome(machine, operation, below(files / name))
    assert found == outcome(real, operation, below(files / name))
    assert isinstance(found, str) == (name in ("text", "binary", "link"))


def test_a_file_that_is_too_large_says_so(machine: ThrowawayMachine, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 64 * MIB + 1)
    with pytest.raises(InputError, match=r"/large: larger than the 64 MiB that the agent reads"):
        Host(machine).read(str(file).lstrip("/"))


@pytest.mark.parametrize("name", ["", "empty", "text", "none"])
def test_names_are_as_on_the_real_machine(machine: ThrowawayMachine, real: RealMachine, files: Path, name: str) -> None:
    found = outcome(machine, "names", below(files / name))
    assert found == outcome(real, "names", below(files / name))
    assert bool(found) == (not name)


@pytest.mark.parametrize("name", ["text", "none", "empty", "link", "dangling", "text/none"])
def test_writes_are_done_and_refused_as_on_the_real_machine(either: Backend, files: Path, name: str) -> None:
    expected = {
        "none": (FileNotFoundError, 2),
        "empty": (IsADirectoryError, 21),
        "link": (OSError, 40),
        "dangling": (OSError, 40),
        "text/none": (NotADirectoryError, 20),
    }
    assert outcome(either, "write", below(files / name), "ä") == expected.get(name)
    assert (files / "text").read_bytes().startswith("ä".encode() if name == "text" else b"one")


def test_a_value_that_a_file_refuses_is_refused_as_on_the_real_machine(either: Backend) -> None:
    assert outcome(either, "write", "dev/full", "text") == (OSError, 28)


def test_directories_are_made_and_removed_as_on_the_real_machine(either: Backend, files: Path) -> None:
    made = str(files / "made")
    assert outcome(either, "make_directory", made) is None
    assert stat.S_ISDIR((files / "made").stat().st_mode)
    assert outcome(either, "make_directory", made) == (FileExistsError, 17)
    assert outcome(either, "remove_directory", made) is None
    assert outcome(either, "remove_directory", made) == (FileNotFoundError, 2)
    assert outcome(either, "remove_directory", str(files)) == (OSError, 39)


def test_a_file_system_is_as_on_the_real_machine(machine: ThrowawayMachine, real: RealMachine, files: Path) -> None:
    assert outcome(machine, "file_system", "/proc") == outcome(real, "file_system", "/proc")
    assert outcome(machine, "file_system", str(files / "none")) == outcome(real, "file_system", str(files / "none"))


def test_a_mount_that_is_refused_leaves_no_directory(either: Backend, tmp_path: Path) -> None:
    found = outcome(either, "mount", "", "no-such-file-system")
    assert found in [(OSError, 19), (PermissionError, 1)]
    assert not list(tmp_path.rglob("no-such-file-system-*"))


def test_a_point_to_mount_on_is_a_new_directory(either: Backend) -> None:
    first, second = (Path(either.perform("mount_point", ["tmpfs"])) for _ in range(2))
    assert first != second
    assert not list(first.iterdir())
    assert not list(second.iterdir())


def test_a_directory_that_nothing_is_mounted_on_is_not_unmounted(either: Backend) -> None:
    point = either.perform("mount_point", ["tmpfs"])
    assert outcome(either, "unmount", point, 0.1) in [(OSError, 22), (PermissionError, 1)]
    assert Path(point).is_dir()


# --- disk and swap ---


def with_disks(machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, *serials: str) -> list[tuple[str, ...]]:
    """Have ``machine`` see disks with these serial numbers, and mount nothing; return what is asked of the agent."""
    files = {f"sys/block/vd{letter}/serial": serial for letter, serial in zip("abc", serials, strict=False)}
    asked: list[tuple[str, ...]] = []
    ask = machine._channel.ask
    monkeypatch.setattr(machine, "_names", lambda _path: [path.split("/")[2] for path in files])
    monkeypatch.setattr(machine, "_read", files.get)

    def noted(letter: str, *fields: Any) -> Any:
        asked.append((letter, *map(str, fields)))
        return [] if letter in "Mi" else ask(letter, *fields)

    monkeypatch.setattr(machine._channel, "ask", noted)
    return asked


def test_a_disk_is_found_by_its_name_and_mounted_once(
    machine: ThrowawayMachine, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xfs.ko").write_bytes(b"\0depends=libcrc32c\0")
    (tmp_path / "libcrc32c.ko").write_bytes(b"a module")
    (tmp_path / "crc32c-cryptoapi.ko").write_bytes(b"what btrfs finds by itself")
    machine._modules = tuple(tmp_path.glob("*.ko"))
    asked = with_disks(machine, monkeypatch, "\n", "btrfs\n", "xfs\n")
    point = Host(machine).disk("xfs")
    assert Host(machine).disk("xfs") == point == f"{place}/tmp/xfs-1"
    assert [one[1:] for one in asked if one[0] in "iM"] == [
        (f"{place}/tmp/crc32c_cryptoapi.ko",),
        (f"{place}/tmp/libcrc32c.ko",),
        (f"{place}/tmp/xfs.ko",),
        ("/dev/vdc", point, "xfs", ""),
    ]
    assert not list((place / "tmp").glob("*.ko")), "no memory is left to them"


@pytest.mark.parametrize(
    ("installed", "reason"),
    [(None, "a disk with xfs needs mkfs.xfs, which is not installed here"), ("/sbin/mkfs.xfs", "no virtio disks")],
)
def test_without_a_disk_it_is_said_what_is_missing(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, installed: str | None, reason: str
) -> None:
    with_disks(machine, monkeypatch, "")
    monkeypatch.setattr("hugepage_qa.qemu.empty_disks.Maker.find", lambda _maker: installed)
    with pytest.raises(CannotRun, match=reason):
        Host(machine).disk("xfs")


def test_a_file_system_that_the_kernel_has_not_is_told(
    machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_disks(machine, monkeypatch, "btrfs")

    def refuse(letter: str, *_fields: Any) -> list[bytes]:
        if letter == "M":
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return []

    monkeypatch.setattr(machine._channel, "ask", refuse)
    with pytest.raises(CannotRun, match="this kernel mounts no btrfs: No such device"):
        Host(machine).disk("btrfs")


def test_the_disk_of_the_real_machine_is_what_it_is(real: RealMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "_disk", lambda: Path("/var/tmp"))
    mount = find_mount(DirectoryTree(Path("/")), "/var/tmp")
    assert mount is not None
    assert Host(real).disk(mount.type) == "/var/tmp"
    with pytest.raises(CannotRun, match=f"no disk with none is free: programs lie on {mount.type}"):
        Host(real).disk("none")


def test_what_needs_a_disk_is_skipped_without_one(machine: ThrowawayMachine) -> None:
    reason = "the machine has no disk with ext4: "
    with pytest.raises(CannotRun, match=reason):
        machine.perform("add_swap", [MIB])
    with pytest.raises(CannotRun, match=reason):
        Host(machine).build_text(Recipe(2 * MIB))


def test_a_swap_file_that_is_refused_is_removed(
    agent: LocalAgent, disk: ThrowawayMachine, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    ask = agent.channel.ask

    def refusing(letter: str, *fields: Any) -> list[bytes]:
        if letter != "+":
            return ask(letter, *fields)
        seen.append(Path(fields[0]).read_bytes())
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(agent.channel, "ask", refusing)
    with pytest.raises(PermissionError):
        disk.perform("add_swap", [MIB])
    page = agent.base_page
    assert len(seen[0]) == MIB
    assert seen[0][1024:].startswith(swap_header(MIB, page, "little" if os.uname().machine != "s390x" else "big"))
    assert seen[0][:page].endswith(MAGIC)
    assert not list((place / "disk").iterdir())


# --- what the kernel says ---


@pytest.mark.parametrize("packed", [True, False])
def test_an_option_is_one_of_the_configuration(
    agent: LocalAgent, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    assert place.is_dir()
    ask = agent.channel.ask
    answers = [gzip.compress(b"CONFIG_CMA=y\n# CONFIG_NUMA is not set\n")]

    def asked(letter: str, *fields: Any) -> list[bytes]:
        return answers[:1] if fields == ("/proc/config.gz",) else ask(letter, *fields)

    monkeypatch.setattr(agent.channel, "ask", asked)
    host = Host(boot(agent, tmp_path / "scratch", None if packed else CONFIG))
    assert (host.kernel_option("CMA"), host.kernel_option("NUMA")) == (True, False)


def test_an_option_is_not_known_where_no_file_tells(
    agent: LocalAgent, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.is_dir()
    ask = agent.channel.ask
    monkeypatch.setattr(
        agent.channel, "ask", lambda letter, path, *rest: ask(letter, f"{path}-none" if letter == "r" else path, *rest)
    )
    assert Host(boot(agent, tmp_path / "scratch")).kernel_option("CMA") is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([b"6,1,2,-;a line\n SUBSYSTEM=mm\n", b"4,2,2,-;\xff;b\n"], ["a line", "\ufffd;b"]),
        ([], []),
        (BrokenPipeError(32, "Broken pipe"), InputError),
        (PermissionError(1, "not permitted"), PermissionError),
    ],
    ids=["lines", "none", "overwritten", "refused"],
)
def test_the_kernel_log_is_its_lines(
    agent: LocalAgent, machine: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch, answer: Any, expected: Any
) -> None:
    def asked(_letter: str) -> list[bytes]:
        if isinstance(answer, OSError):
            raise answer
        found: list[bytes] = answer
        return found

    monkeypatch.setattr(agent.channel, "ask", asked)
    if isinstance(expected, list):
        assert machine.perform("new_kernel_log", []) == expected
    else:
        with pytest.raises(expected):
            machine.perform("new_kernel_log", [])


# --- actors ---


def test_an_actor_answers_as_on_the_real_machine(either: Backend) -> None:
    host = Host(either)
    actor = host.start_actor()
    try:
        address = actor.mmap(3 * host.base_page, 3, 0x22)
        actor.fill(address, 3 * host.base_page, host.base_page, 7)
        assert actor.check(address, 3 * host.base_page, host.base_page, 7) == 0
        with pytest.raises(OSError, match="EBADF"):
            actor.call("close", 99)
        assert host.read(f"proc/{actor.pid}/stat") is not None
    finally:
        actor.end()
    assert host.read(f"proc/{actor.pid}/stat") is None


def test_a_forked_actor_is_as_on_the_real_machine(either: Backend) -> None:
    actor = Host(either).start_actor()
    child = actor.fork()
    grandchild = child.fork()
    assert len({actor.pid, child.pid, grandchild.pid}) == 3
    actor.exit()
    with pytest.raises(ActorGone):
        actor.text()
    assert child.text() == grandchild.text() == 0
    actor.end()
    for one in (actor, child, grandchild):
        with pytest.raises(ActorGone):
            one.text()
        one.end()


def test_one_that_was_killed_is_gone_as_on_the_real_machine(either: Backend) -> None:
    actor = Host(either).start_actor()
    os.kill(actor.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ActorGone, match=rf"the actor \(process {actor.pid}\)"):
            actor.text()
    actor.end()


def test_a_request_that_is_too_long_is_a_mistake_of_the_case(either: Backend) -> None:
    actor = Host(either).start_actor()
    with pytest.raises(ValueError, match="an actor takes at most 65536"):
        actor.call("write", 1, bytes(40_000), 40_000)
    assert actor.call("memfd_create", "x" * 100, 0) > 0
    actor.end()


@pytest.mark.parametrize("mode", [None, 0o644, 0o755], ids=["missing", "not runnable", "no program"])
def test_a_program_that_cannot_be_started_says_nothing_of_the_kernel(
    either: Backend, tmp_path: Path, mode: int | None
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.write_bytes(b"\x7fELF")
        program.chmod(mode)
    with pytest.raises(InputError, match=str(program)):
        Host(either).start_program(str(program))


def test_an_actor_that_gets_no_cpu_says_nothing_of_the_kernel(either: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_link, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(actor_link, "_STARVED_SECONDS", 0.5)
    actor = Host(either).start_actor()
    os.kill(actor.pid, signal.SIGSTOP)
    with pytest.raises(ActorStarved, match="0 s of a CPU"):
        actor.text()
    actor.end()
    assert Host(either).read("proc/version"), "the machine answers on"


# --- programs with text ---


@pytest.mark.parametrize("kind", [Kind.PIE, Kind.STATIC_PIE, Kind.LIBRARY])
def test_a_program_is_built_put_into_the_machine_and_started(disk: ThrowawayMachine, place: Path, kind: Kind) -> None:
    host = Host(disk)
    built = host.build_text(Recipe(2 * MIB, whole=1, kind=kind))
    assert {Path(built.program).parent.parent, Path(built.file).parent.parent} == {place / "disk"}
    assert (built.program == built.file) == (kind is not Kind.LIBRARY)
    assert os.access(built.program, os.X_OK)
    actor = host.start_program(built.program)
    address = actor.text()
    assert address
    assert actor.run(address, built.pages, 4096) == 0
    segment = built.elf.segments[built.elf.text]
    assert actor.sum(address - built_offset(built.file, segment.offset), segment.size) == built.checksum
    actor.end()


def built_offset(file: str, segment: int) -> int:
    """Return how far behind the begin of its segment the first page of code is."""
    with Path(file).open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".symtab")
        assert isinstance(table, SymbolTableSection)
        (symbol,) = table.get_symbol_by_name("text_page_0") or []
        return int(symbol.entry.st_value) - segment


def test_a_program_is_put_there_once_with_what_loads_it(disk: ThrowawayMachine, place: Path) -> None:
    host = Host(disk)
    built = host.build_text(Recipe(2 * MIB, whole=1))
    loaded = [path for path in place.rglob("*.so*") if path.is_file()]
    assert any(path.name.startswith("ld") for path in loaded)
    assert (place / "lib" / "libc.so.6").read_bytes()[:4] == b"\x7fELF"
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in loaded)
    times = {path: path.stat().st_mtime_ns for path in [*loaded, Path(built.file)]}
    assert host.build_text(Recipe(2 * MIB, whole=1)) == built
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_program_lies_where_it_is_asked_for(machine: ThrowawayMachine, tmp_path: Path) -> None:
    built = Host(machine).build_text(Recipe(2 * MIB, whole=1, kind=Kind.STATIC_PIE), str(tmp_path))
    assert Path(built.file).parent.parent == tmp_path
    assert Path(built.file).stat().st_size == built.elf.size


def test_without_a_compiler_that_makes_libraries_it_is_a_skip(
    disk: ThrowawayMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    zig = Compiler("x86_64", ("zig",), makes_libraries=False)
    monkeypatch.setattr(throwaway_machine, "compilers", lambda _architecture: iter([zig]))
    with pytest.raises(CannotRun, match="no compiler with a C library to load"):
        Host(disk).build_text(Recipe(2 * MIB))


# --- what is remembered, and the end ---


def test_the_last_operations_that_may_change_something_are_remembered(machine: ThrowawayMachine, files: Path) -> None:
    machine.perform("read", [below(files / "text")])
    machine.perform("clock", [])
    machine.perform("write", [below(files / "text"), "x" * 1000])
    (action,) = machine.actions
    assert action.startswith(f'write ["{below(files / "text")}", "xxx')
    assert len(action) < 310
    for _ in range(60):
        machine.perform("pause", [0])
    assert len(machine.actions) == 40


def test_what_is_read_after_an_action_is_what_is_there_then(machine: ThrowawayMachine, files: Path) -> None:
    path = below(files / "text")
    others: Sequence[str] = [below(files / "binary"), path]
    for number in range(4):
        assert machine.perform("read", [others[0]]) is not None
        machine.perform("write", [path, str(number)])
        assert machine.perform("read", [others[0]]) is not None
        found = machine.perform("read", [path])
        assert found is not None and found[0] == str(number)
        (files / "text").write_text(f"{number + 5}")
        assert machine.perform("observe", [path]) == str(number + 5)


@pytest.mark.parametrize(
    "operation",
    [
        lambda machine: machine.perform("read", ["proc/version"]),
        lambda machine: machine.perform("names", ["proc"]),
        lambda machine: machine.perform("write", ["dev/null", ""]),
        lambda machine: machine.perform("start_actor", []),
        lambda machine: machine.perform("kernel_option", ["CMA"]),
    ],
    ids=["read", "names", "write", "start_actor", "kernel_option"],
)
def test_a_machine_that_is_gone_is_no_answer_of_a_kernel(
    agent: LocalAgent, place: Path, tmp_path: Path, operation: Callable[[ThrowawayMachine], object]
) -> None:
    assert place.is_dir()
    machine = boot(agent, tmp_path / "scratch")
    agent.child.kill()
    with pytest.raises(MachineLost):
        operation(machine)


def test_a_machine_that_goes_while_an_actor_is_asked_is_lost(agent: LocalAgent, machine: ThrowawayMachine) -> None:
    actor = Host(machine).start_actor()
    agent.child.kill()
    with pytest.raises(MachineLost):
        actor.text()
