"""Who an actor acts as."""

import struct

from hugepage_qa.actor.process import Actor

#: the user and group that own nothing (overflowuid in Documentation/admin-guide/sysctl/kernel.rst)
NOBODY = 65534


def become_nobody(actor: Actor, *groups: int) -> None:
    """Make ``actor`` an unprivileged user with the supplementary ``groups``; it does not get its rights back."""
    if groups:
        actor.call("setgroups", len(groups), struct.pack(f"{len(groups)}I", *groups))
    else:
        actor.call("setgroups", 0, 0)
    actor.call("setresgid", NOBODY, NOBODY, NOBODY)
    actor.call("setresuid", NOBODY, NOBODY, NOBODY)
