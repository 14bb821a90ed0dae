"""What a random program can act on at some point: that which the model has by then."""

from hugepage_qa.model.hugetlb_pool.machine import PoolMachine
from hugepage_qa.model.hugetlb_pool.operation import area_of


class Present:
    """What there is in ``machine``, whose programs use pages of ``size`` bytes."""

    def __init__(self, machine: PoolMachine, size: int) -> None:
        self._machine = machine
        self._size = size

    @property
    def processes(self) -> list[str]:
        return list(self._machine.processes)

    @property
    def mounts(self) -> list[str]:
        return list(self._machine.mounts)

    @property
    def groups(self) -> list[str]:
        return list(self._machine.groups)

    @property
    def open_files(self) -> list[tuple[str, str]]:
        """(process, file) for each file that is open."""
        return [
            (process, name)
            for process, owner in self._machine.processes.items()
            for name, file in self._machine.files.items()
            if file in owner.open_files
        ]

    @property
    def segments(self) -> list[str]:
        """SysV segments that can be attached."""
        return [name for name, file in self._machine.files.items() if file.is_segment and file.is_linked]

    @property
    def linked_files(self) -> list[str]:
        """What can be unlinked: files on mounts, and segments."""
        mounts = list(self._machine.mounts.values())
        on_mounts = [name for name, file in self._machine.files.items() if file.is_linked and file.mount in mounts]
        return on_mounts + self.segments

    @property
    def pieces(self) -> list[tuple[str, int, int, int]]:
        """(process, area, first page, pages) for each mapping, of which an area may hold several."""
        return [
            (process, *area_of(mapping.address, self._size), mapping.count)
            for process, owner in self._machine.processes.items()
            for mapping in owner.mappings
        ]

    def segment_pages(self, segment: str) -> int:
        """Return how many pages a segment has."""
        return self._machine.files[segment].length
