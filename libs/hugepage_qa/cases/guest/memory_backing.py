"""libvirt's <memoryBacking> with all its elements, and what must come of each combination of them.

What must come of it is worked out from the elements alone (libvirt.org/formatdomain.html memoryBacking; libvirt
src/qemu/qemu_validate.c qemuValidateDomainDefMemory(), src/qemu/qemu_command.c qemuBuildMemoryBackendProps()).
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.qemu.guest.guest_description import Access, Allocation, Source


@dataclass(frozen=True)
class MemoryOutcome:
    """How a guest has its memory; one that is refused has none. ``is_there`` is whether all of it is from the start."""

    refusal: Meaning | None = None
    is_huge: bool = False
    is_shared: bool = False
    is_there: bool = False
    is_discarded: bool = False


@dataclass(frozen=True)
class MemoryBacking:
    """The elements, None where they are left out; pages are huge ones of ``page`` bytes, of the default size for 0."""

    page: int | None = None
    source: Source | None = None
    allocation: Allocation | None = None
    access: Access | None = None
    discard: bool = False
    nosharepages: bool = False
    #: what its cells say instead (memAccess=, discard=)
    cell_access: Access | None = None
    cell_discard: bool | None = None

    def __str__(self) -> str:
        words = {
            "source": self.source,
            "allocation": self.allocation,
            "access": self.access,
            "memAccess": self.cell_access,
        }
        given = [f"{name}={value.value}" for name, value in words.items() if value is not None]
        if self.cell_discard is not None:
            given.append(f"discard of the cell={self.cell_discard}")
        named = {"hugepages": self.page is not None, "discard": self.discard, "nosharepages": self.nosharepages}
        return " ".join([*(name for name, is_there in named.items() if is_there), *given]) or "nothing"

    def put_into(self, definition: str) -> str:
        """Return the domain ``definition`` with this <memoryBacking> in place of its own."""
        domain = ElementTree.fromstring(definition)  # noqa: S314 - our own
        backing = domain.find("memoryBacking")
        if backing is None:
            raise ValueError("a definition of ours has a memoryBacking")
        backing.clear()
        backing.extend(self._elements())
        for cell in domain.iterfind("cpu/numa/cell"):
            if self.cell_access is not None:
                cell.set("memAccess", self.cell_access.value)
            if self.cell_discard is not None:
                cell.set("discard", "yes" if self.cell_discard else "no")
        return ElementTree.tostring(domain, encoding="unicode")

    def _elements(self) -> Iterator[Element]:
        if self.page is not None:
            pages = Element("hugepages")
            if self.page:
                SubElement(pages, "page", size=str(self.page // 1024), unit="KiB")
            yield pages
        if self.nosharepages:
            yield Element("nosharepages")
        if self.source is not None:
            yield Element("source", type=self.source.value)
        if self.access is not None:
            yield Element("access", mode=self.access.value)
        if self.allocation is not None:
            yield Element("allocation", mode=self.allocation.value)
        if self.discard:
            yield Element("discard")

    def outcome(self) -> MemoryOutcome:
        """Return what must come of it."""
        is_huge = self.page is not None
        if is_huge and (self.allocation is Allocation.ON_DEMAND or self.source is Source.ANONYMOUS):
            return MemoryOutcome(Meaning.EXCLUDE_EACH_OTHER)
        access = self.cell_access or self.access
        # without an access it is QEMU that chooses: it shares a memfd, and nothing else
        is_shared = access is Access.SHARED or (access is None and self.source is Source.MEMFD)
        is_there = is_huge or self.allocation is Allocation.IMMEDIATE
        # a memfd has nothing to be discarded from
        is_in_a_file = is_huge or self.source is Source.FILE
        discard = self.discard if self.cell_discard is None else self.cell_discard
        is_discarded = discard and is_in_a_file and self.source is not Source.MEMFD
        return MemoryOutcome(None, is_huge, is_shared, is_there, is_discarded)


def every_backing_with_huge_pages(page: int) -> Iterator[MemoryBacking]:
    """Yield each combination of source, allocation, access and discard with pages of ``page`` bytes."""
    sources, allocations, accesses = (None, *Source), (None, *Allocation), (None, *Access)
    for words in itertools.product(sources, allocations, accesses, (False, True)):
        yield MemoryBacking(page, *words)


def every_backing_of_a_cell(page: int) -> Iterator[MemoryBacking]:
    """Yield each combination of access and discard of the guest with those of its cell."""
    switch = (False, True)
    for access, discard, cell_access, cell_discard in itertools.product(Access, switch, Access, switch):
        yield MemoryBacking(page, access=access, discard=discard, cell_access=cell_access, cell_discard=cell_discard)


def every_backing_with_ordinary_pages() -> Iterator[MemoryBacking]:
    """Yield each combination of source and allocation, and of those sources that can be shared with access, too."""
    allocations = (None, *Allocation)
    for source, allocation in itertools.product((None, *Source), allocations):
        yield MemoryBacking(None, source, allocation)
    for source, allocation, access in itertools.product((Source.FILE, Source.MEMFD), allocations, Access):
        yield MemoryBacking(None, source, allocation, access)
