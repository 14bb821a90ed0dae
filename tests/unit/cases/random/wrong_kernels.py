"""Kernels that do one thing wrong."""

from tests.unit.cases.random.targets import SMALL, machine

from hugepage_qa.oracle.pool.pool_files import AccessFault
from hugepage_qa.oracle.pool.pool_machine import PoolMachine


class LosesFreePage(PoolMachine):
    """munmap() loses a free page."""

    def unmap(self, process: str, address: int, end: int) -> None:
        super().unmap(process, address, end)
        self.pools[SMALL].free -= bool(self.pools[SMALL].free)


class ForgetsReservation(PoolMachine):
    """fork() ends the reservation of a page."""

    def fork(self, process: str, child: str) -> None:
        super().fork(process, child)
        self.pools[SMALL].resv -= bool(self.pools[SMALL].resv)


class WritesThrough(PoolMachine):
    """A write to a page that fork() has shared changes the page of the other process, too."""

    def touch(self, process: str, address: int, value: int | None = None) -> int:
        mapping = self.processes[process].find(address)
        page = mapping.present.get(mapping.index(address)) if mapping else None
        held = super().touch(process, address, value)
        if page is not None and value is not None:
            page.value = value
        return held


class CountsTooMuch(PoolMachine):
    """A mount with size= has a page less than that."""

    def mount(self, name: str, size: int, least: int | None, most: int | None, inodes: int | None) -> None:
        super().mount(name, size, least, most, inodes)
        subpool = self.mounts[name].subpool
        if subpool and subpool.most:
            subpool.used += 1


class ForgetsCharge(PoolMachine):
    """A page that a process in a group touches is not charged to it."""

    def touch(self, process: str, address: int, value: int | None = None) -> int:
        group = self.processes[process].group
        before = group.used.usage(SMALL)
        held = super().touch(process, address, value)
        group.used.uncharge(SMALL, (group.used.usage(SMALL) - before) // SMALL)
        return held


class NeverKills(PoolMachine):
    """A read where nothing can be had gives zeros."""

    def touch(self, process: str, address: int, value: int | None = None) -> int:
        try:
            return super().touch(process, address, value)
        except AccessFault:
            return 0


class KeepsReservation(PoolMachine):
    """The last process that ends leaves a reservation."""

    def exit(self, process: str) -> None:
        super().exit(process)
        self.pools[SMALL].resv += not self.processes


def wrong(kind: type[PoolMachine]) -> PoolMachine:
    """Return a machine that does wrong as ``kind`` does."""
    found = machine()
    found.__class__ = kind
    return found
