"""Who an actor acts as, and what it may do (capabilities(7)): taken from root, or kept by who is root no more."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from hugepage_qa.kernel.uapi import NOBODY
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Actor, Refused

# include/uapi/linux/capability.h, prctl.h
IPC_LOCK, SYS_RAWIO, SYS_ADMIN = 14, 17, 21
_VERSION = 0x20080522
_PR_SET_KEEPCAPS = 8


def become_nobody(actor: Actor, *groups: int) -> None:
    """Make ``actor`` the user and the group without rights, with the supplementary ``groups``."""
    become_user(actor, NOBODY, *groups)


def become_user(actor: Actor, user: int, *groups: int) -> None:
    """Make ``actor`` an unprivileged user, in the group of that number and ``groups``; its rights do not come back."""
    if groups:
        actor.call("setgroups", len(groups), actor.uapi.pack(f"{len(groups)}I", *groups))
    else:
        actor.call("setgroups", 0, 0)
    actor.call("setresgid", user, user, user)
    actor.call("setresuid", user, user, user)


@contextmanager
def without_capability(actor: Actor, number: int) -> Iterator[None]:
    """Take a capability from what ``actor``, the user root, may do, until the block ends (capset(2))."""
    before = _capabilities(actor)
    effective, *rest = before
    _set(actor, effective & ~(1 << number), *rest)
    yield
    _set(actor, *before)


def become_user_with(actor: Actor, user: int, number: int) -> None:
    """Make ``actor`` a user with one capability and no other one.

    Raises CannotRun where root has it not: a container can be without any of them.
    """
    actor.call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    actor.call("setresuid", user, user, user)
    try:
        _set(actor, 1 << number, 1 << number, 0, 0, 0, 0)
    except Refused as refusal:
        _effective, permitted, *_rest = _capabilities(actor)
        if refusal.errno != errno.EPERM or permitted >> number & 1:
            raise
        raise CannotRun(f"root lacks capability {number} of capabilities(7)") from refusal


def _capabilities(actor: Actor) -> tuple[int, ...]:
    """Return effective, permitted and inheritable ones below 32, and those from there on."""
    _zero, (_header, found) = actor.call_with_buffers("capget", _header_of(actor), bytes(24))
    return actor.uapi.unpack("6I", found)


def _set(actor: Actor, *words: int) -> None:
    actor.call("capset", _header_of(actor), actor.uapi.pack("6I", *words))


def _header_of(actor: Actor) -> bytes:
    return actor.uapi.pack("2I", _VERSION, 0)
