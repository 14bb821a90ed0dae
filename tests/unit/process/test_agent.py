"""The agent, for real: it is built and asked, and acts on files of the test."""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.process.local_agent import LocalAgent, refusal, start_agent

from hugepage_qa.kernel.proc_tables import find_mount
from hugepage_qa.kernel.tree import DirectoryTree
from hugepage_qa.qemu.agent_channel import AgentChannel
from hugepage_qa.qemu.lost_machine import MachineLost
from hugepage_qa.sizes import MIB


@pytest.fixture
def namespace_channel() -> Iterator[AgentChannel]:
    """The agent with mounts of its own, as a root who is none outside."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace can be had: unshare(1) is not there, or the kernel refuses")
    with start_agent(own) as started:
        yield started.channel


def test_it_says_the_size_of_a_page_first(agent: LocalAgent) -> None:
    assert agent.base_page == mmap.PAGESIZE


@pytest.mark.parametrize("content", [b"", b"one\n", bytes(range(256)) * 7, bytes(65536), bytes(65537), b"x" * MIB])
def test_a_file_is_read_as_it_is(channel: AgentChannel, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert channel.ask("r", str(tmp_path / "file")) == [content]


def test_a_file_of_proc_is_read_to_its_end(channel: AgentChannel) -> None:
    assert channel.ask("r", "/proc/version") == [Path("/proc/version").read_bytes()]
    assert channel.ask("r", "/proc/self/maps")[0].endswith(b"[vsyscall]\n") or os.uname().machine != "x86_64"


def test_a_file_that_is_too_large_is_refused_and_not_cut(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.touch()
    os.truncate(file, 64 * MIB)
    assert len(channel.ask("r", str(file))[0]) == 64 * MIB
    os.truncate(file, 64 * MIB + 1)
    assert refusal(channel, "r", str(file)) == "EFBIG"
    assert channel.ask("r", "/proc/sys/kernel/ostype") == [b"Linux\n"]


def test_what_cannot_be_read_is_refused_as_the_kernel_says(channel: AgentChannel, tmp_path: Path) -> None:
    assert refusal(channel, "r", str(tmp_path / "none")) == "ENOENT"
    assert refusal(channel, "r", str(tmp_path)) == "EISDIR"
    assert refusal(channel, "n", str(tmp_path / "none")) == "ENOENT"


def test_names_are_those_of_the_directory_alone(channel: AgentChannel, tmp_path: Path) -> None:
    assert channel.ask("n", str(tmp_path)) == []
    strange = [b"a b", b"\xff\xfe", b"new\nline", b".hidden"]
    for name in strange:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    assert sorted(channel.ask("n", str(tmp_path))) == sorted(strange)


def test_a_write_goes_to_a_file_that_is_there(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert refusal(channel, "w", str(file), "text") == "ENOENT"
    file.write_text("longer than that")
    assert channel.ask("w", str(file), "text") == []
    assert file.read_text() == "texter than that"


def test_a_refused_write_tells_the_errno(channel: AgentChannel, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    assert refusal(channel, "w", str(tmp_path / "link"), "text") == "ELOOP"
    assert refusal(channel, "w", "/dev/full", "text") == "ENOSPC"
    assert refusal(channel, "w", str(tmp_path), "text") == "EISDIR"


def test_bytes_are_stored_where_they_belong(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    channel.ask("f", str(file), 3, b"\0def")
    channel.ask("f", str(file), 0, b"abc")
    assert file.read_bytes() == b"abc\0def"
    assert file.stat().st_mode & 0o777 == 0o600
    assert refusal(channel, "f", "/dev/full", 0, b"abc") == "ENOSPC"


def test_five_megabytes_arrive_whole(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    content = os.urandom(5 * MIB)
    for offset in range(0, len(content), MIB):
        channel.ask("f", str(file), offset, content[offset : offset + MIB])
    assert file.read_bytes() == content
    channel.ask("f", str(file), 0, content[::-1])
    assert file.read_bytes() == content[::-1]


def test_zeros_are_a_new_file_without_holes(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    channel.ask("z", str(file), 3 * 65536 + 5)
    assert file.read_bytes() == bytes(3 * 65536 + 5)
    assert file.stat().st_blocks * 512 >= 3 * 65536
    assert refusal(channel, "z", str(file), 1) == "EEXIST"


def test_the_mode_is_octal(channel: AgentChannel, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    channel.ask("c", str(tmp_path / "file"), "751")
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o751
    assert refusal(channel, "c", str(tmp_path / "none"), "751") == "ENOENT"


def _is_cached(file: Path) -> bool:
    """Tell whether the page cache has the first page of a file, by mincore(2), which does not read it."""
    with file.open("r+b") as stream, mmap.mmap(stream.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE) as mapped:
        first, seen = ctypes.c_char.from_buffer(mapped), ctypes.c_ubyte()
        assert ctypes.CDLL(None).mincore(ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(seen)) == 0
        del first  # a mapping in use cannot be closed
        return bool(seen.value & 1)


def test_an_evicted_file_is_on_the_disk_alone(channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc" * 4096)
    assert _is_cached(file)
    channel.ask("o", str(file))
    assert not _is_cached(file) or _is_in_memory(file)
    assert file.read_bytes() == b"abc" * 4096
    assert refusal(channel, "o", str(tmp_path / "none")) == "ENOENT"


def _is_in_memory(file: Path) -> bool:
    mount = find_mount(DirectoryTree(Path("/")), str(file))
    return mount is not None and mount.type in ("tmpfs", "ramfs")


def test_the_file_system_is_told_as_statvfs_tells_it(channel: AgentChannel, tmp_path: Path) -> None:
    told = [int(field) for field in channel.ask("s", str(tmp_path))]
    use = os.statvfs(tmp_path)
    # what is free may change meanwhile
    assert (told[0], told[1], told[3]) == (use.f_bsize, use.f_blocks, use.f_files)
    assert 0 < told[2] <= told[1]
    assert 0 <= told[4] <= told[3]
    assert refusal(channel, "s", str(tmp_path / "none")) == "ENOENT"


def test_directories_and_files_are_made_and_removed(channel: AgentChannel, tmp_path: Path) -> None:
    place = tmp_path / "place"
    channel.ask("d", str(place))
    assert place.is_dir()
    assert refusal(channel, "d", str(place)) == "EEXIST"
    (place / "file").touch()
    assert refusal(channel, "D", str(place)) == "ENOTEMPTY"
    channel.ask("x", str(place / "file"))
    assert refusal(channel, "x", str(place / "file")) == "ENOENT"
    channel.ask("D", str(place))
    assert not place.exists()


def test_a_file_system_is_mounted_with_its_options(namespace_channel: AgentChannel, tmp_path: Path) -> None:
    namespace_channel.ask("M", "hugepage-qa", str(tmp_path), "tmpfs", "size=64k")
    (mount,) = [line for line in namespace_channel.ask("r", "/proc/self/mounts")[0].splitlines() if b"=64k" in line]
    assert mount.startswith(b"hugepage-qa " + os.fsencode(tmp_path) + b" tmpfs ")
    namespace_channel.ask("U", str(tmp_path))
    assert b"=64k" not in namespace_channel.ask("r", "/proc/self/mounts")[0]
    assert refusal(namespace_channel, "U", str(tmp_path)) == "EINVAL"
    assert refusal(namespace_channel, "M", "hugepage-qa", str(tmp_path), "no such", "") == "ENODEV"


def test_a_module_that_the_kernel_refuses_is_told(namespace_channel: AgentChannel, tmp_path: Path) -> None:
    file = tmp_path / "xfs.ko"
    assert refusal(namespace_channel, "i", str(file)) == "ENOENT"
    file.write_bytes(b"no module")
    # nobody may in a user namespace, and a kernel may have no modules at all
    assert refusal(namespace_channel, "i", str(file)) in ("EPERM", "ENOSYS")


def test_swap_that_the_kernel_refuses_is_told(namespace_channel: AgentChannel, tmp_path: Path) -> None:
    assert refusal(namespace_channel, "+", str(tmp_path / "swap")) == "EPERM"
    assert refusal(namespace_channel, "-", str(tmp_path / "swap")) == "EPERM"


def test_the_kernel_log_is_told_from_where_it_was_skipped_to(channel: AgentChannel) -> None:
    assert refusal(channel, "l") == "EBADF"
    try:
        channel.ask("L")
    except PermissionError:
        pytest.skip("who is not root may not read the kernel log here")
    assert all(b";" in record for record in channel.ask("l"))


# --- many requests, nonsense, and the end ---


def test_many_requests_at_once_are_answered_in_their_order(channel: AgentChannel, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / str(number)).write_bytes(str(number).encode() * 5000)
    answers = channel.ask_many([("r", (str(tmp_path / str(number)),)) for number in range(200)])
    assert answers == [[str(number).encode() * 5000] for number in range(200)]


def test_a_refusal_between_others_is_that_of_its_request(channel: AgentChannel, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"here")
    requests = [("r", (str(tmp_path / name),)) for name in ("file", "none", "file")]
    first, refused, last = channel.ask_many(requests)
    assert first == last == [b"here"]
    assert isinstance(refused, FileNotFoundError)


def test_a_request_that_there_is_not_is_refused(channel: AgentChannel) -> None:
    assert refusal(channel, "?") == "ENOSYS"
    assert channel.ask("n", "/proc/self/task") != []


@pytest.mark.parametrize(
    "nonsense",
    [
        bytes(4),
        b"\xff\xff\xff\xff" + b"x" * 100,
        struct.pack(">I", (64 << 20) + 1),
        struct.pack(">Ic", 9, b"r") + struct.pack(">I", 5) + b"abcd",
        struct.pack(">Ic", 5, b"r") + b"\xff\xff\xff\xff",
        struct.pack(">Ic", 1, b"f"),
    ],
    ids=["empty frame", "endless frame", "large frame", "long field", "endless field", "no fields"],
)
def test_nonsense_ends_the_agent_and_is_a_cut_line_for_us(agent: LocalAgent, nonsense: bytes) -> None:
    agent.line.sendall(nonsense)
    with pytest.raises(MachineLost, match=r"its line was cut|reset by peer"):
        agent.channel.receive()
    assert agent.child.wait(20) is not None


def test_a_frame_that_comes_in_pieces_is_one(agent: LocalAgent, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"here")
    path = os.fsencode(tmp_path / "file")
    for byte in struct.pack(">IcI", 5 + len(path), b"r", len(path)) + path:
        agent.line.sendall(bytes([byte]))
    assert agent.channel.receive() == b"k" + struct.pack(">I", 4) + b"here"


def test_it_ends_when_its_line_is_closed(agent: LocalAgent) -> None:
    agent.line.close()
    assert agent.child.wait(20) == 0
