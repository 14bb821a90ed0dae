"""What libvirt tells of the machine's pools, and how it changes them."""

from functools import partial
from xml.etree import ElementTree

from hugepage_qa.guest.driver import GuestError
from hugepage_qa.guest.libvirt_driver import LibvirtDriver
from hugepage_qa.sizes import KIB

#: flags of virNodeAllocPages
_ADD, _SET = 0, 1


class LibvirtPools:
    """The pools as the daemon behind ``driver`` sees them; sizes are bytes, cells are NUMA nodes."""

    def __init__(self, driver: LibvirtDriver) -> None:
        self._driver = driver

    def free_pages(self, size: int, cell: int) -> int:
        """Return the free pages of a cell (virNodeGetFreePages). Raises GuestError."""
        answer = self._driver.call(partial(self._driver.connection.getFreePages, [size // KIB], cell, 1))
        return int(answer[cell][size // KIB])

    def allocate_pages(self, size: int, pages: int, cell: int, add: bool) -> int:
        """Have the pool of a cell hold ``pages`` pages, or that many more, and return the cells that were changed.

        This is virNodeAllocPages. Raises GuestError.
        """
        flags = _ADD if add else _SET
        return int(self._driver.call(partial(self._driver.connection.allocPages, {size // KIB: pages}, cell, 1, flags)))

    def page_sizes(self) -> dict[str, dict[str, int]]:
        """Return cell -> page size in KiB -> pages in its pool, as the capabilities have it. Raises GuestError."""
        try:
            document = ElementTree.fromstring(self._driver.call(self._driver.connection.getCapabilities))  # noqa: S314
        except ElementTree.ParseError as error:
            raise GuestError(f"capabilities of libvirt: {error}") from error
        return {
            cell.get("id", ""): {page.get("size", ""): int(page.text or 0) for page in cell.findall("pages")}
            for cell in document.findall("./host/topology/cells/cell")
        }
