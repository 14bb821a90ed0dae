"""Processes and what they have mapped."""

import signal
from dataclasses import dataclass, field

from hugepage_qa.model.hugetlb_pool.cgroup import ControlGroup
from hugepage_qa.model.hugetlb_pool.file import HugeFile, Mapping


class AccessFault(Exception):
    """An access that ends in a signal."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.signal = number


@dataclass(eq=False)
class Process:
    """A process: its control group, its mappings by address, and the files that it has open."""

    group: ControlGroup
    mappings: list[Mapping] = field(default_factory=list)
    open_files: list[HugeFile] = field(default_factory=list)

    def find(self, address: int) -> Mapping | None:
        """Return the mapping that holds ``address``."""
        return next((one for one in self.mappings if one.address <= address < one.end_address), None)

    def at(self, address: int) -> Mapping:
        """Return the mapping that holds ``address``. Raises AccessFault (SIGSEGV) where there is none."""
        mapping = self.find(address)
        if mapping is None:
            raise AccessFault(signal.SIGSEGV)
        return mapping

    def add(self, mapping: Mapping) -> None:
        """Add a mapping, here and to its file."""
        mapping.file.insert(mapping)
        self.adopt(mapping)

    def adopt(self, mapping: Mapping) -> None:
        """Add a mapping that its file knows."""
        self.mappings.append(mapping)
        self.mappings.sort(key=lambda one: one.address)

    def remove(self, mapping: Mapping) -> None:
        """Forget a mapping, here and in its file."""
        mapping.file.mappings.remove(mapping)
        self.mappings.remove(mapping)

    def split(self, address: int) -> None:
        """Split the mapping that ``address`` lies inside of, so that one begins there: __split_vma()."""
        mapping = self.find(address)
        if mapping is None or mapping.address == address:
            return
        at = mapping.index(address)
        self.remove(mapping)
        self.add(mapping.part(mapping.first, at))
        self.add(mapping.part(at, mapping.end))

    def cut(self, address: int, end: int) -> list[Mapping]:
        """Return the mappings from ``address`` on and before ``end``, split so that none reaches beyond."""
        self.split(address)
        self.split(end)
        return [one for one in self.mappings if address <= one.address < end]

    @property
    def mapped_bytes(self) -> int:
        """HugetlbPages in /proc/PID/status: mm->hugetlb_usage."""
        return sum(len(mapping.present) * mapping.file.pool.size for mapping in self.mappings)
