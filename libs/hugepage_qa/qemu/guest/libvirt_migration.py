"""A guest that goes from one daemon of libvirt to another on this host (libvirt.org/migration.html)."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.driver import await_condition
from hugepage_qa.qemu.guest.qemu_migration import DOWNTIME, FAST, NO_DOWNTIME, SLOW, SLOW_POSTCOPY, UNTIL_POSTCOPY
from hugepage_qa.sizes import MIB

#: what is to be seen of a migration in an emulated guest on a busy machine takes minutes
_SECONDS = 300.0


def destination(daemon: str, socket: str, definition: str) -> str:
    """Return where a guest is sent that is to be ``definition`` then, under the daemon that is reached at ``daemon``.

    Its memory goes through ``socket``, which libvirt has for daemons of one host that see the same directory.
    """
    return json.dumps({"daemon": daemon, "memory": f"unix://{socket}", "definition": definition})


class LibvirtMigration:
    """A domain that is being sent. Its methods raise libvirtError, also when the migration fails; end it at last."""

    def __init__(self, libvirt: Any, domain: Any, to: str, postcopy: bool) -> None:
        """Begin to send ``domain`` to what ``destination`` returned, slowly.

        With ``postcopy`` it is as fast as until its CPUs are moved: asked for that once they are to move, libvirt waits
        until they have, which at the slow pace takes two minutes for a page of 1 GiB.
        """
        self._libvirt = libvirt
        self._domain = domain
        where = json.loads(to)
        self._target = libvirt.open(where["daemon"])
        parameters = {
            libvirt.VIR_MIGRATE_PARAM_URI: where["memory"],
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: where["definition"],
            libvirt.VIR_MIGRATE_PARAM_BANDWIDTH: (UNTIL_POSTCOPY if postcopy else SLOW) // MIB,
        }
        flags = libvirt.VIR_MIGRATE_LIVE
        if postcopy:
            domain.migrateSetMaxDowntime(NO_DOWNTIME)
            flags |= libvirt.VIR_MIGRATE_POSTCOPY
            parameters[libvirt.VIR_MIGRATE_PARAM_BANDWIDTH_POSTCOPY] = SLOW_POSTCOPY // MIB
        self._thread = ThreadPoolExecutor(1)
        # libvirt returns when it is over
        self._result = self._thread.submit(domain.migrate3, self._target, parameters, flags)

    def await_sending(self) -> None:
        """Wait until its memory is on the way. Raises InputError when it was over too soon to be seen."""
        self._await(self._is_sending, "memory is on the way")

    def start_postcopy(self) -> None:
        """Move its CPUs, and wait until they are. Raises InputError when it was over too soon to be seen."""
        self._domain.migrateStartPostCopy()
        moved = [self._libvirt.VIR_DOMAIN_PAUSED, self._libvirt.VIR_DOMAIN_PAUSED_POSTCOPY]
        self._await(lambda: self._domain.state() == moved, "its CPUs are moved")

    def finish(self) -> None:
        """Send what is left as fast as can be, and wait for the end."""
        postcopy = self._libvirt.VIR_DOMAIN_MIGRATE_MAX_SPEED_POSTCOPY
        for hasten in (
            partial(self._domain.migrateSetMaxDowntime, DOWNTIME),
            partial(self._domain.migrateSetMaxSpeed, FAST // MIB),
            partial(self._domain.migrateSetMaxSpeed, FAST // MIB, postcopy),
        ):
            # one that has ended meanwhile tells below how
            with suppress(self._libvirt.libvirtError):
                hasten()
        self._result.result()

    def cancel(self) -> None:
        """Have the domain stay, and wait until nothing is sent. Raises InputError when it has gone before."""
        self._domain.abortJob()
        # either end may be the first to tell that it is over, each in its own words
        with suppress(self._libvirt.libvirtError):
            self._result.result()
            raise InputError("the migration was over before it was cancelled")

    def end(self) -> None:
        """Wait until the thread has ended, as it does when the domain is gone, and let go of the target."""
        self._thread.shutdown()
        with suppress(self._libvirt.libvirtError):
            self._target.close()

    def _is_sending(self) -> bool:
        stats = self._domain.jobStats()
        is_outgoing = stats.get("operation") == self._libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT
        return bool(is_outgoing and stats.get("memory_processed"))

    def _await(self, is_so: Any, what: str) -> None:
        """Wait until ``is_so``, but no longer than for the end of the migration."""
        await_condition(lambda: self._result.done() or is_so(), _SECONDS, f"it takes more until {what}, not")
        if self._result.done():
            self._result.result()
            raise InputError(f"the migration was over before {what}: nothing of it was seen")
