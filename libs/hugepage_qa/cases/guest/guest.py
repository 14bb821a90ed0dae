"""One guest, and what is expected of it: what it tells, and which pages its QEMU has."""

from collections.abc import Iterable, Mapping, Sequence

from hugepage_qa.cases.guest.booted_guest import BootedGuest, md5_of_written
from hugepage_qa.cases.guest.guest_readings import (
    hugetlb_mappings,
    hugetlb_policies,
    mapped_pages,
    mappings_of_size,
    pages_on_nodes,
    transparent_bytes,
)
from hugepage_qa.kernel.nodes import parse_list
from hugepage_qa.kernel.smaps import MemoryMapping
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.qemu.guest.driver import Driver, State
from hugepage_qa.qemu.guest.guest_description import pages_needed
from hugepage_qa.sizes import format_size

#: of what ``policy=`` of QEMU calls another way than the kernel does
_NAMES_IN_NUMA_MAPS = {"preferred": "prefer"}


class Guest(BootedGuest):
    """A guest as cases have it: what it does is asked of its driver and its shell, and compared here."""

    def expect_busy(self) -> None:
        """Expect the program of ``keep_busy`` to live, and all that it has written until now to be there.

        A guest that was saved or migrated is asked where it is now. Two rounds: the first one may be half over.
        """
        self.expect_found_right(self.find_in_memory())

    def expect_found_right(self, found: str) -> None:
        """Expect that program to have found nothing wrong."""
        self._live.expect(f"what {self.name} finds in its memory", "right", found)

    def expect_written(self, path: str, line: str, length: int) -> None:
        """Expect it to have in a file what it was told to write there (``write_file``)."""
        found = self.run(f"md5sum <{path}").split()[0]
        self._live.expect(f"what {self.name} has in {path}", md5_of_written(line, length), found)

    def expect_memory(self, memory: int) -> None:
        """Expect its kernel to have ``memory`` bytes to give: soon, as it takes a while to be told of new ones."""
        self._live.host.wait_until(lambda: self.memory == memory)
        self._live.expect(f"MemTotal of {self.name}", memory, self.memory)

    @property
    def mapped(self) -> int:
        """The pages of the size under test that its QEMU maps."""
        return mapped_pages(ObservedTree(self._live.host), self.pid).get(self._live.size, 0)

    def await_mapped(self, pages: int) -> None:
        """Wait for a while until its QEMU maps ``pages`` pages of the size under test.

        A page is out of the pool before it is cleared, which takes a while, and mapped after that.
        """
        self._live.host.wait_until(lambda: self.mapped == pages)

    @property
    def hugetlb_mappings(self) -> list[tuple[bool, int, int]]:
        """What its QEMU maps of pools, by address: whether that is shared, its bytes, and those that are there."""
        return hugetlb_mappings(ObservedTree(self._live.host), self.pid)

    @property
    def mapped_memory(self) -> list[MemoryMapping]:
        """What its QEMU maps in one piece as large as its only cell."""
        [cell] = self.description.cells
        return mappings_of_size(ObservedTree(self._live.host), self.pid, cell.memory)

    def expect_in(self, point: str) -> None:
        """Expect its memory to be a file below ``point``, where libvirt puts those of guests."""
        found = [one.path.startswith(f"{point}/libvirt/qemu/") for one in self.mapped_memory]
        self._live.expect(f"whether its memory is in {point}", [True], found)

    def await_hugetlb_unmapped(self) -> None:
        """Wait for a while until its QEMU maps nothing of a pool: it does that after it has told (call_rcu())."""
        self._live.host.wait_until(lambda: not self.hugetlb_mappings)

    def expect_policy(self, policy: str, nodes: Sequence[int], mappings: int = 1) -> None:
        """Expect the ``mappings`` of its QEMU in huge pages to have this policy of ``policy=`` for these nodes."""
        self.expect_policies([(policy, nodes)] * mappings)

    def expect_policies(self, policies: Iterable[tuple[str, Sequence[int]]]) -> None:
        """Expect its QEMU to have mappings in huge pages with each of ``policies``, wherever they lie."""
        expected = sorted((_NAMES_IN_NUMA_MAPS.get(policy, policy), tuple(nodes)) for policy, nodes in policies)
        told = hugetlb_policies(ObservedTree(self._live.host), self.pid)
        # QEMU says "many" where the kernel knows that (MPOL_PREFERRED_MANY, Linux 5.15), which is the same of one node
        parts = [one.replace(" (many)", "").partition(":") for one in told]
        found = [(kind, parse_list(of, "numa_maps") if of else ()) for kind, _colon, of in parts]
        self._live.expect("policies of memory in huge pages", expected, sorted(found))

    def expect_state(self, state: State) -> None:
        """Expect its driver to say so."""
        self._live.expect(f"state of {self.name}", state.value, self._driver.ask(Driver.state, self.name))

    def expect_mapped(self, **more: int) -> None:
        """Expect its QEMU to map the pages that it needs, all of them huge, and no ordinary memory in their place.

        ``more`` are further pages of a size, by the name of the size: ``**{"2M": 3}``.
        """
        expected = {format_size(size): 0 for size in self._live.sizes}
        for pool, pages in pages_needed(self.description).items():
            expected[format_size(pool.size)] += pages
        for size, pages in more.items():
            expected[size] += pages
        found = mapped_pages(ObservedTree(self._live.host), self.pid)
        for bytes_of_page in self._live.sizes:
            size = format_size(bytes_of_page)
            subject = f"huge pages of {size} in the QEMU of {self.name}"
            self._live.expect(subject, expected[size], found.get(bytes_of_page, 0))

    def expect_all_taken(self) -> None:
        """Expect it to run, and to have every page of the pool, which has as many as it needs."""
        self._live.expect_pool(nr=self.pages, free=0)
        self.expect_mapped()

    def expect_no_transparent_pages(self) -> None:
        """Expect no transparent huge page in its QEMU, in which guest memory could be instead."""
        found = transparent_bytes(ObservedTree(self._live.host), self.pid)
        # its heap may have some, its memory would be all of them
        self._live.expect("guest memory in transparent huge pages", False, found >= self.description.memory // 2)

    def expect_transparent_pages(self) -> None:
        """Expect its memory to be in transparent huge pages, but for what memory is too fragmented for."""
        found = transparent_bytes(ObservedTree(self._live.host), self.pid)
        self._live.notes.append(f"{format_size(found)} of {format_size(self.description.memory)} transparent")
        self._live.expect("at least half of the guest in THP", True, found >= self.description.memory // 2)

    def expect_on_nodes(self, nodes: Mapping[int, int]) -> None:
        """Expect its pages of the size under test on these nodes: node -> pages."""
        found = pages_on_nodes(ObservedTree(self._live.host), self.pid, self._live.size)
        self._live.expect(f"nodes of the pages of {self.name}", dict(nodes), dict(found or {}))
