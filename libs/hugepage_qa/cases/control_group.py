"""Control groups for a case, put back when its actors have ended, and the hierarchies that they are in."""

import enum
import errno
import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from hugepage_qa.cases.case import Around
from hugepage_qa.cases.live import Live
from hugepage_qa.errors import InputError
from hugepage_qa.kernel.hugetlb_cgroup import read_controllers
from hugepage_qa.kernel.proc_tables import read_mounts
from hugepage_qa.kernel.tree import parse_integer
from hugepage_qa.machine.host import CannotRun, Host, ObservedTree
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.marks import PREFIX

_SUBTREE_CONTROL = "cgroup.subtree_control"
# a group is busy until its last process is reaped, and a hierarchy until its last group is
_BUSY_SECONDS = 60.0
_BETWEEN_MOUNTS_SECONDS = 1.0
# the kernel may keep a removed group for ever: whoever waits for its end gives up then
_REMEMBERED_SECONDS = 5.0
#: in /proc/cgroups: the number of the version 1 hierarchy of a controller that has none, and the groups of an empty one
_NONE = 0
_ROOT_ALONE = 1
#: processes are in the group itself, which is not the root (cgroups(7)); or it may not be written at all
_NOT_OURS = (errno.EBUSY, errno.EPERM, errno.EACCES, errno.EROFS)
#: to take a group offline: a grace period and a worker take milliseconds on an idle machine
_OFFLINE_SECONDS = 2
#: base pages that a CPU is charged for at once (MEMCG_CHARGE_BATCH)
CHARGED_AHEAD = 64
#: bytes: of a file of events, and of struct timespec
_MOST_TEXT, _TIMESPEC = 256, 16


class Version(enum.IntEnum):
    """A version of the control group hierarchy."""

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

    def actor(self) -> Actor:
        """Return a new actor in the group."""
        actor = self._live.actor()
        self.add(actor)
        return actor

    def add(self, actor: Actor) -> None:
        """Move a process here. Raises OSError."""
        self.write("cgroup.procs", str(actor.pid))

    def read(self, name: str) -> str | None:
        """Return the text of a file that will be judged, None without it."""
        return ObservedTree(self._live.host).read(f"{self.path}/{name}")

    def read_number(self, name: str) -> int:
        """Return what a file with one number shows, which will be judged. Raises InputError for anything else."""
        return parse_integer((self.read(name) or "").strip(), f"{self.path}/{name}")

    def write(self, name: str, text: str) -> None:
        """Write a file. Raises OSError."""
        self._live.host.write(f"{self.path}/{name}", text)

    def remove(self) -> None:
        """Remove the group; its last process may have left it just now. Raises OSError when it stays busy."""
        self._live.host.wait_until(self._is_removed, _BUSY_SECONDS)
        if not self._removed:
            self._live.host.remove_directory(self.path)
            self._removed = True

    def _is_removed(self) -> bool:
        """Remove the group if its processes have left it. Raises OSError for any other reason that keeps it."""
        try:
            self._live.host.remove_directory(self.path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            self._removed = True
        return self._removed

    def wait_until_offline(self) -> None:
        """Give a worker of the kernel the time to take a removed group offline; no file tells when it has."""
        self._live.host.pause(_OFFLINE_SECONDS)

    def wait_until_forgotten(self) -> None:
        """Wait until the kernel has forgotten the groups that were removed below this one, where it tells."""

        def is_forgotten() -> bool:
            lines = (self._live.host.read(f"{self.path}/cgroup.stat") or "").splitlines()
            return dict(line.split() for line in lines).get("nr_dying_descendants", "0") == "0"

        self._live.host.wait_until(is_forgotten, _REMEMBERED_SECONDS)

    def _remove_if_there(self) -> None:
        if not self._removed:
            self.remove()


class Watch:
    """A file of a group whose changes are told to who polls it and has read it before (cgroup_file_notify())."""

    def __init__(self, actor: Actor, descriptor: int) -> None:
        self._actor = actor
        self._descriptor = descriptor
        self.read()

    def read(self) -> None:
        """Read the file: what has been told is not told again."""
        self._actor.call("pread64", self._descriptor, bytes(_MOST_TEXT), _MOST_TEXT, 0)

    def is_told(self) -> bool:
        """Tell whether the file has changed since it was read (poll(2) POLLPRI)."""
        uapi = self._actor.uapi
        asked, at_once = uapi.pack("ihh", self._descriptor, select.POLLPRI, 0), bytes(_TIMESPEC)
        _ready, (polled, *_) = self._actor.call_with_buffers("ppoll", asked, 1, at_once, 0, 0)
        return bool(uapi.unpack("ihh", polled)[2] & select.POLLPRI)


def new_group(live: Live, controller: str, version: Version) -> ControlGroup:
    """Make a group in the hierarchy that has ``controller``; all is put back when the actors of the case have ended.

    The hierarchy of version 1 is mounted if it is not. Raises CannotRun where the machine cannot have it.
    """
    cleanup = ExitStack()
    live.when_actors_have_ended(cleanup.close)
    root = _root_v1(live, controller, cleanup) if version is Version.ONE else _root_v2(live, controller, cleanup)
    try:
        return ControlGroup(live, controller, version, f"{root}/{PREFIX}case", cleanup)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise
        raise CannotRun(f"{root}: no group can be made there, as in a container: {error.strerror}") from error


def keeping_hierarchy(controller: str) -> Around:
    """Return what mounts the version 1 hierarchy of ``controller`` once for all cases of an area.

    For each case anew it costs seconds. Where it cannot be mounted the cases say why.
    """

    @contextmanager
    def kept(host: Host) -> Iterator[None]:
        known = read_controllers(host).get(controller)
        point = _try_to_mount(host, controller) if known and known.enabled and not known.hierarchy else None
        try:
            yield
        finally:
            has_gone = point is None or _unmount_v1(host, controller, point)
        if not has_gone:
            raise InputError(f"/proc/cgroups: a hierarchy of {controller} outlives its mount: reboot, a group is held")

    return kept


def _try_to_mount(host: Host, controller: str) -> str | None:
    # groups of version 2 that others have just removed keep the controller until then: EBUSY, and no case would run
    host.pause(_OFFLINE_SECONDS)
    try:
        return host.mount(controller, "cgroup")
    except OSError:
        return None


def _root_v1(live: Live, controller: str, cleanup: ExitStack) -> str:
    # a kernel may have it for version 2 alone (CONFIG_MEMCG_V1, CONFIG_CPUSETS_V1), and does not list it then
    # (cgroup1_subsys_absent() in kernel/cgroup/cgroup-v1.c)
    known = read_controllers(live.host).get(controller)
    if not (known and known.enabled):
        raise CannotRun(f"this kernel has no control group controller {controller} of version 1")
    for mount in read_mounts(live.host):
        if mount.type == "cgroup" and controller in mount.options.split(","):
            if read_controllers(live.host)[controller].groups == _ROOT_ALONE:
                cleanup.callback(_expect_root_alone, live, controller)
            return mount.point
    try:
        point = live.host.mount(controller, "cgroup")
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise CannotRun(f"groups of version 2 use the controller {controller}") from error
        raise CannotRun(f"no hierarchy of version 1 for {controller} can be mounted: {error.strerror}") from error
    cleanup.callback(_expect_unmounted, live, controller, point)
    return point


def _expect_root_alone(live: Live, controller: str) -> None:
    """Expect the kernel to have forgotten every group of a hierarchy that is ours alone."""

    def groups() -> int:
        return read_controllers(live.host)[controller].groups

    def when_reclaimed() -> int:
        live.make_room()
        return groups()

    found = live.host.last_look(groups, _ROOT_ALONE.__eq__, _REMEMBERED_SECONDS)
    if found != _ROOT_ALONE:
        # what a file system looked up on a disk for a group is charged to that, and held until it is reclaimed; what
        # it changed there is dirty first, for half a minute
        found = live.host.last_look(when_reclaimed, _ROOT_ALONE.__eq__, _BUSY_SECONDS)
    live.expect(f"groups of {controller} in /proc/cgroups", _ROOT_ALONE, found)


def _expect_unmounted(live: Live, controller: str, point: str) -> None:
    _unmount_v1(live.host, controller, point)
    live.expect(f"hierarchy of {controller} in /proc/cgroups", _NONE, read_controllers(live.host)[controller].hierarchy)


def _unmount_v1(host: Host, controller: str, point: str) -> bool:
    """Unmount until the hierarchy is gone, and tell whether it is.

    One with a removed group that is still remembered outlives its mount.
    """

    def has_gone() -> bool:
        return read_controllers(host)[controller].hierarchy == _NONE

    host.unmount(point)
    deadline = host.clock() + _BUSY_SECONDS
    while True:
        # the moment that an unmounted hierarchy takes to go
        host.wait_until(has_gone, _BETWEEN_MOUNTS_SECONDS)
        if has_gone() or host.clock() > deadline:
            return has_gone()
        host.unmount(host.mount(controller, "cgroup"))


def _root_v2(live: Live, controller: str, cleanup: ExitStack) -> str:
    for mount in read_mounts(live.host):
        if mount.type == "cgroup2":
            _hand_down(live, controller, mount.point, cleanup)
            return mount.point
    raise CannotRun("no hierarchy of version 2 is mounted")


def _hand_down(live: Live, controller: str, root: str, cleanup: ExitStack) -> None:
    if controller not in (live.host.read(f"{root}/cgroup.controllers") or "").split():
        raise CannotRun(
            f"{root}/cgroup.controllers has no {controller}: the kernel has none, or a hierarchy of version 1 or a "
            "container has it"
        )
    control = f"{root}/{_SUBTREE_CONTROL}"
    if controller not in (live.host.read(control) or "").split():
        try:
            live.host.write(control, f"+{controller}")
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            raise CannotRun(f"{control} is not ours, as in a container: {error.strerror}") from error
        cleanup.callback(live.host.write, control, f"-{controller}")
