"""A memory backend of QEMU with all its options, and what must come of each combination of them.

What must come of it is worked out from the options alone (QEMU backends/hostmem.c, backends/hostmem-file.c,
util/mmap-alloc.c; mm/hugetlb.c hugetlb_reserve_pages()). Sizes are in bytes.
"""

import enum
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.qemu.guest.guest_description import whole_pages
from hugepage_qa.qemu.guest.guest_site import Site


class Store(enum.Enum):
    """What holds the memory: a file in hugetlbfs that keeps its name, one that never had any, or a memfd."""

    NAMED_FILE = "named file"
    FILE = "file"
    MEMFD = "memfd"


@dataclass(frozen=True)
class PoolOutcome:
    """What a backend does to a pool: pages that it takes at once, and that are reserved for it beyond these.

    ``kept`` and ``kept_reserved`` are what is left of them without the backend, as long as its file is there. Where it
    is refused all are 0.
    """

    refusal: Meaning | None = None
    taken: int = 0
    reserved: int = 0
    kept: int = 0
    kept_reserved: int = 0


@dataclass(frozen=True)
class MemoryBackend:
    """``memory`` bytes in pages of ``page`` bytes; the others are share=, reserve=, prealloc= and discard-data=."""

    memory: int
    page: int
    store: Store
    is_shared: bool = False
    is_reserved: bool = True
    is_preallocated: bool = True
    is_discarded: bool = False

    def __str__(self) -> str:
        flags = {"share": self.is_shared, "reserve": self.is_reserved, "prealloc": self.is_preallocated}
        if self.store is not Store.MEMFD:
            flags["discard-data"] = self.is_discarded
        return " ".join([self.store.value, *(f"{name}={'on' if value else 'off'}" for name, value in flags.items())])

    def path(self, site: Site) -> str:
        """Return the file that a backend with a name has."""
        return f"{site.mounts[self.page]}/backend"

    def definition(self, site: Site, name: str) -> str:
        """Return what QEMU takes for it, as the object ``name``."""
        options: dict[str, object] = {
            "qom-type": "memory-backend-memfd" if self.store is Store.MEMFD else "memory-backend-file",
            "id": name,
            "size": self.memory,
            "share": self.is_shared,
            "reserve": self.is_reserved,
            "prealloc": self.is_preallocated,
        }
        match self.store:
            case Store.MEMFD:
                options |= {"hugetlb": True, "hugetlbsize": self.page}
            case Store.FILE:
                options |= {"mem-path": site.mounts[self.page], "discard-data": self.is_discarded}
            case Store.NAMED_FILE:
                options |= {"mem-path": self.path(site), "discard-data": self.is_discarded}
        return json.dumps(options)

    def outcome(self, available: int, touched: int = 0) -> PoolOutcome:
        """Return what must come of it where ``available`` pages are neither in use nor reserved.

        ``touched`` pages of it a guest or QEMU has used, which counts where they were not taken at once.
        """
        pages = whole_pages(self.memory, self.page)
        if self.is_preallocated and not self.is_reserved:
            return PoolOutcome(Meaning.EXCLUDE_EACH_OTHER)
        if self.is_reserved and available < pages:
            return PoolOutcome(Meaning.SHORT_OF_PAGES)
        taken = pages if self.is_preallocated else touched
        reserved = pages - taken if self.is_reserved else 0
        # what a file has is reserved for and kept by the file itself where it is shared, else by the mapping
        is_kept = self.store is Store.NAMED_FILE and self.is_shared
        # a hole gives back what lay in it, and no reservation of what was never there
        kept = taken if is_kept and not self.is_discarded else 0
        return PoolOutcome(None, taken, reserved, kept, reserved if is_kept else 0)


def every_backend(memory: int, page: int, stores: Iterable[Store] = tuple(Store)) -> Iterator[MemoryBackend]:
    """Yield a backend with each combination of options; a memfd has nothing to be discarded from."""
    switch = (False, True)
    for store, *flags in itertools.product(stores, switch, switch, switch, switch):
        backend = MemoryBackend(memory, page, store, *flags)
        if not (store is Store.MEMFD and backend.is_discarded):
            yield backend
