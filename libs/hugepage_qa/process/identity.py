"""Who the programs of ``make qa`` run as when root starts it: without root where they do not need to be root.

Throwaway machines need none. Their programs become the user nobody (tmt wants one that has a name), and keep one
privilege: to read what root may read (CAP_DAC_READ_SEARCH), since the tree, Python and the kernel under test may lie
where only root can look. They can write to what they are given, a scratch directory and a part of the cache, and to
nothing else of root's.

All have a group by which what they make is known (machine/snapshot.py).
"""

import os
import pwd
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.cache import locked
from hugepage_qa.process.child import complaint, run_to_end
from hugepage_qa.process.marks import GROUP

_KVM = Path("/dev/kvm")
_FOR_ALL = 0o006

# a change of user or group forgets what run_supervised() has asked for (prctl(2) PR_SET_PDEATHSIG)
_IN_GROUP = ("setpriv", f"--regid={GROUP}", "--pdeathsig=TERM")
_READ_ALL = "-all,+dac_read_search"
_WITHOUT_RIGHTS = (
    *("--clear-groups", "--no-new-privs", f"--inh-caps={_READ_ALL}", f"--ambient-caps={_READ_ALL}"),
    # access(2), by which shells and Python look for programs, leaves privileges out without it
    "--securebits=+no_setuid_fixup",
)
_NOBODY = "nobody"
_AS_ROOT = "the tests run as root, without need"
_BY_NAME = "what the tests leave on this machine is known by its name alone"
# The device is for root or a group. A second node of it, for the user alone, takes its place in a mount namespace: it
# is not seen outside, and is gone with its last process.
_WITH_KVM = (
    'mount -t tmpfs -o mode=755 hugepage-qa "$1" && mknod -m 600 "$1/kvm" c "$3" "$4" && chown "$5" "$1/kvm" && '
    'mount --bind "$1/kvm" "$2" && shift 5 && exec "$@"'
)

_TMT_SETTINGS = ".config/tmt"
#: below the cache of root: what is not root may not be trusted with the rest
_OWN_CACHE = "without-root"
# packages that were unpacked, and which they are; all else names the directory that it lies in
_SHARED_WITH_ROOT = ("packages/content", "packages/names")


@dataclass(frozen=True)
class Identity:
    """``words`` start a program as this user; ``user`` is the user's number, None for who we are.

    ``shortfall`` tells why the programs are not who they should be; empty when they are.
    """

    words: tuple[str, ...] = ()
    user: int | None = None
    shortfall: str = ""


def choose_identity(scratch: Path, *, needs_root: bool, kvm: Path = _KVM) -> Identity:
    """Return who the programs run as that write to the directory ``scratch``; who is not root cannot choose."""
    if os.geteuid() != 0:
        return Identity()
    if needs_root:
        return _checked(Identity((*_IN_GROUP, "--keep-groups", "--")), _BY_NAME)
    try:
        user = pwd.getpwnam(_NOBODY).pw_uid
    except KeyError:
        return Identity(shortfall=f"{_AS_ROOT}: there is no user {_NOBODY}")
    words = (*_kvm_words(scratch, kvm, user), *_IN_GROUP, f"--reuid={user}", *_WITHOUT_RIGHTS, "--")
    return _checked(Identity(words, user), _AS_ROOT)


def _kvm_words(scratch: Path, kvm: Path, user: int) -> tuple[str, ...]:
    """Return what has the device ``kvm`` open for ``user`` as it opens for root."""
    if not kvm.is_char_device() or kvm.stat().st_mode & _FOR_ALL == _FOR_ALL:
        return ()
    point = scratch / "dev"
    point.mkdir(mode=0o755, exist_ok=True)
    device = kvm.stat().st_rdev
    arguments = (point, kvm, os.major(device), os.minor(device), user)
    return ("unshare", "--mount", "sh", "-c", _WITH_KVM, "sh", *map(str, arguments))


def _checked(identity: Identity, otherwise: str) -> Identity:
    """Return ``identity`` if a program of the suite starts with it, else why not: a container may forbid it."""
    missing = [word for word in ("setpriv", "unshare") if word in identity.words and shutil.which(word) is None]
    if missing:
        return Identity(shortfall=f"{otherwise}: {missing[0]} is not installed (util-linux)")
    # the library, too, must be readable
    command = [*identity.words, sys.executable, "-c", "import hugepage_qa.errors"]
    done = run_to_end(command)
    return identity if done.returncode == 0 else Identity(shortfall=f"{otherwise}: {complaint(done)}")


def give(directory: Path, user: int) -> None:
    """Make ``user`` the owner of ``directory`` and of all in it. Raises OSError."""
    for one in (directory, *directory.rglob("*")):
        os.chown(one, user, GROUP if user else 0, follow_symlinks=False)


def make_home(scratch: Path) -> Path:
    """Return a new home in ``scratch`` for a user without one, where tmt is set up as root has it. Raises OSError."""
    home = scratch / "home"
    home.mkdir()
    if (Path.home() / _TMT_SETTINGS).is_dir():
        shutil.copytree(Path.home() / _TMT_SETTINGS, home / _TMT_SETTINGS, symlinks=True)
    return home


def cache_of(identity: Identity, cache: Path) -> Path:
    """Return where programs with ``identity`` keep what is downloaded, if root keeps it in ``cache``.

    What root has downloaded is there, too. Raises OSError.
    """
    if identity.user is None:
        return cache
    own = cache / _OWN_CACHE
    with locked(cache / f"{_OWN_CACHE}.lock"):
        if not own.exists():
            # whole or not at all: half a kernel is one that does not boot
            with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as new:
                for name in _SHARED_WITH_ROOT:
                    if (cache / name).is_dir():
                        shutil.copytree(cache / name, Path(new, "own", name))
                Path(new, "own").mkdir(mode=0o700, exist_ok=True)
                Path(new, "own").rename(own)
        give(own, identity.user)
    return own
