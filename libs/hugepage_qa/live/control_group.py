"""Control groups for a case: made in the hierarchy of one version, put back when its actors have ended."""

import enum
import errno
from collections.abc import Callable
from contextlib import ExitStack

from hugepage_qa.actor.process import Actor
from hugepage_qa.kernel.mounts import read_mounts
from hugepage_qa.live.host import ObservedTree
from hugepage_qa.live.live import Live
from hugepage_qa.live.outcomes import CannotRun
from hugepage_qa.machine.marks import PREFIX

_SUBTREE_CONTROL = "cgroup.subtree_control"
# a group is busy until its last process is buried, and a hierarchy until its last group is
_ATTEMPTS = 50
_PAUSE_SECONDS = 0.02
#: a grace period and a worker take milliseconds on an idle machine
_OFFLINE_SECONDS = 2


class Version(enum.IntEnum):
    """Of the control group hierarchies."""

    ONE = 1
    TWO = 2


class ControlGroup:
    """A directory ``path`` (absolute) in the hierarchy of a controller."""

    def __init__(self, live: Live, controller: str, version: Version, path: str, cleanup: ExitStack) -> None:
        self._live = live
        self._cleanup = cleanup
        self._removed = False
        self.controller = controller
        self.version = version
        self.path = path
        live.host.make_directory(path)
        cleanup.callback(self._remove_if_there)

    def child(self, name: str) -> "ControlGroup":
        """Make a group below this one, which must have no processes in version 2. Raises OSError."""
        if self.version is Version.TWO:
            self.write(_SUBTREE_CONTROL, f"+{self.controller}")
        return ControlGroup(self._live, self.controller, self.version, f"{self.path}/{name}", self._cleanup)

    def add(self, actor: Actor) -> None:
        """Move a process here. Raises OSError."""
        self.write("cgroup.procs", str(actor.pid))

    def read(self, name: str) -> str | None:
        """Return the text of a file that will be judged, None without it."""
        return ObservedTree(self._live.host).read(f"{self.path}/{name}")

    def write(self, name: str, text: str) -> None:
        """Write a file. Raises OSError."""
        self._live.host.write(f"{self.path}/{name}", text)

    def remove(self) -> None:
        """Remove the group; its last process may have left it just now. Raises OSError when it stays busy."""
        _insist(self._live, lambda: self._live.host.remove_directory(self.path))
        self._removed = True

    def wait_until_offline(self) -> None:
        """Wait until a worker of the kernel has taken a removed group offline; no file tells when it has."""
        self._live.host.pause(_OFFLINE_SECONDS)

    def wait_until_forgotten(self) -> None:
        """Wait until the kernel has forgotten the groups that were removed below this one, where it tells."""
        for _attempt in range(_ATTEMPTS):
            counts = dict(
                line.split() for line in (self._live.host.read(f"{self.path}/cgroup.stat") or "").splitlines()
            )
            if counts.get("nr_dying_descendants", "0") == "0":
                return
            self._live.host.pause(_PAUSE_SECONDS)

    def _remove_if_there(self) -> None:
        if not self._removed:
            self.remove()


def new_group(live: Live, controller: str, version: Version) -> ControlGroup:
    """Make a group in the hierarchy that has ``controller``; all is put back when the actors of the case have ended.

    The hierarchy of version 1 is mounted if it is not. Raises CannotRun where the machine cannot have it.
    """
    if controller not in _controllers(live):
        raise CannotRun(f"this kernel has no control group controller {controller}")
    cleanup = ExitStack()
    live.when_actors_have_ended(cleanup.close)
    root = _root_v1(live, controller, cleanup) if version is Version.ONE else _root_v2(live, controller, cleanup)
    return ControlGroup(live, controller, version, f"{root}/{PREFIX}case", cleanup)


def _controllers(live: Live) -> dict[str, str]:
    """Return the enabled controllers and the number of their version 1 hierarchy, 0 for none."""
    lines = [line.split() for line in (live.host.read("proc/cgroups") or "").splitlines() if not line.startswith("#")]
    return {words[0]: words[1] for words in lines if words[3] == "1"}


def _root_v1(live: Live, controller: str, cleanup: ExitStack) -> str:
    for mount in read_mounts(live.host):
        if mount.type == "cgroup" and controller in mount.options.split(","):
            return mount.point
    try:
        point = live.host.mount(controller, "cgroup")
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise CannotRun(f"groups of version 2 use the controller {controller}") from error
        raise CannotRun(f"no hierarchy of version 1 for {controller} can be mounted: {error.strerror}") from error
    cleanup.callback(_unmount_v1, live, controller, point)
    return point


def _unmount_v1(live: Live, controller: str, point: str) -> None:
    """Unmount until the hierarchy is gone: one with a removed group that is still remembered outlives its mount."""
    live.host.unmount(point)
    for _attempt in range(_ATTEMPTS):
        if _is_free(live, controller):
            return
        live.host.unmount(live.host.mount(controller, "cgroup"))
    live.expect(f"hierarchy of {controller} in /proc/cgroups", "0", _controllers(live)[controller])


def _is_free(live: Live, controller: str) -> bool:
    """Wait for a moment, as long as it takes an unmounted hierarchy to go, and tell whether it has gone."""
    for _attempt in range(_ATTEMPTS):
        if _controllers(live)[controller] == "0":
            return True
        live.host.pause(_PAUSE_SECONDS)
    return False


def _root_v2(live: Live, controller: str, cleanup: ExitStack) -> str:
    for mount in read_mounts(live.host):
        if mount.type == "cgroup2":
            _hand_down(live, controller, mount.point, cleanup)
            return mount.point
    raise CannotRun("no hierarchy of version 2 is mounted")


def _hand_down(live: Live, controller: str, root: str, cleanup: ExitStack) -> None:
    if controller not in (live.host.read(f"{root}/cgroup.controllers") or "").split():
        raise CannotRun(
            f"{root}/cgroup.controllers has no {controller}: a hierarchy of version 1 or a container has it"
        )
    control = f"{root}/{_SUBTREE_CONTROL}"
    if controller not in (live.host.read(control) or "").split():
        live.host.write(control, f"+{controller}")
        cleanup.callback(live.host.write, control, f"-{controller}")


def _insist(live: Live, removal: Callable[[], None]) -> None:
    for _attempt in range(_ATTEMPTS - 1):
        try:
            return removal()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        live.host.pause(_PAUSE_SECONDS)
    return removal()
