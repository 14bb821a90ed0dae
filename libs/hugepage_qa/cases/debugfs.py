"""debugfs for a case: files of the memory management that no other file system has."""

import errno
import os

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import read_vmstat, vmstat_delta
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.process.actor import Actor

_ATTEMPTS, _PAUSE_SECONDS = 3, 0.1


def write_debugfs(live: Live, name: str, text: str) -> None:
    """Write to a file of debugfs. Raises CannotRun where there is none, and where a locked down kernel refuses it."""
    path = find_in_debugfs(live, name)
    try:
        live.host.write(path, text)
    except OSError as error:
        raise _cannot_write(error) from error


def open_debugfs(live: Live, actor: Actor, name: str) -> int:
    """Have ``actor`` open a file of debugfs to write, and return its descriptor. Raises as ``write_debugfs`` does."""
    path = find_in_debugfs(live, name)
    try:
        return live.open(actor, f"/{path}", os.O_WRONLY)
    except OSError as error:
        raise _cannot_write(error) from error


def find_in_debugfs(live: Live, name: str) -> str:
    """Return the path of a file of debugfs, without the leading slash. Raises CannotRun where there is none."""
    point = live.mount_interface("debugfs")
    directory, _slash, file = f"{point}/{name}".rpartition("/")
    if file not in live.host.names(directory):
        raise CannotRun(f"this kernel has no {name} in debugfs")
    return f"{point}/{name}"


def _cannot_write(error: OSError) -> Exception:
    """Return what to raise for an ``error``: that of a locked down kernel is a reason not to run."""
    if error.errno != errno.EPERM:
        return error
    return CannotRun("this kernel is locked down: debugfs cannot be written (kernel_lockdown(7))")


def expect_split(live: Live, which: str, pages: int) -> int:
    """Have the huge pages split that ``which`` names to split_huge_pages, and expect at least ``pages`` to be counted.

    It is "1" for all, "PID,START,END" for a range of addresses, "PATH,START,END" for a range of pages of a file.
    Returns how often that was asked for. Raises CannotRun as ``write_debugfs`` does.
    """
    before = last = read_vmstat(ObservedTree(live.host))
    rose = attempts = 0
    while attempts < _ATTEMPTS:
        if attempts:
            live.host.pause(_PAUSE_SECONDS)
        attempts += 1
        write_debugfs(live, "split_huge_pages", which)
        now = read_vmstat(ObservedTree(live.host))
        rose = vmstat_delta(before, now)["thp_split_page"]
        # a huge page that somebody has a hold of in that moment stays one, and may be passed over without a count
        if rose >= pages and not vmstat_delta(last, now)["thp_split_page_failed"]:
            break
        last = now
    live.expect(f"thp_split_page rose by {pages} at least, split_huge_pages of {which}", pages, min(rose, pages))
    return attempts
