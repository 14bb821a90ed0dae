"""A machine whose huge pages are used: its pools, mounts, control groups, files and processes.

Operations change them as the kernel does, and raise what the system calls give: OSError with their errno, AccessFault
for a signal.
"""

from collections.abc import Iterable, Mapping, Sequence

from hugepage_qa.oracle.pool.pool_charges import ControlGroup, PrivateReservation
from hugepage_qa.oracle.pool.pool_counters import FreshMemory, PageSize, Pool
from hugepage_qa.oracle.pool.pool_files import HugeFile, Mount, Process
from hugepage_qa.oracle.pool.pool_files import Mapping as PageMapping
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.oracle.pool.pool_mappings import reserve, reserve_file, truncate, unmap


class PoolMachine:
    """Pools, mounts, control groups, files and processes, by name.

    ``home``: the node that all pages lie on, None when that is open. ``elsewhere`` are pages of other nodes, size ->
    node -> what the files of its pool show: the pools here are without them, and nothing changes them.
    """

    def __init__(
        self,
        kernel: PoolKernel,
        sizes: Iterable[PageSize],
        home: int | None = 0,
        elsewhere: Mapping[int, Mapping[int, Mapping[str, int]]] | None = None,
    ) -> None:
        self.kernel = kernel
        self.home = home
        self.elsewhere = elsewhere or {}
        self.memory = FreshMemory()
        self.pools = {page.size: Pool(page, kernel, self.memory) for page in sizes}
        self.mounts: dict[str, Mount] = {}
        self.files: dict[str, HugeFile] = {}
        self.groups: dict[str, ControlGroup] = {}
        self.processes: dict[str, Process] = {}
        #: where processes start; its charges do not matter to anybody
        self._root = ControlGroup("/")
        #: what files that have no name in a file system lie on
        self.internal = {size: Mount(pool) for size, pool in self.pools.items()}

    def start_process(self, name: str) -> None:
        """Start a process in the root group, with nothing mapped."""
        self.processes[name] = Process(self._root)

    def can_demote(self, size: int) -> bool:
        """Tell whether a pool has the file demote, and takes no page of other nodes by it.

        There is a smaller size, and the kernel is new enough. What is free elsewhere is reserved by number alone:
        demote_pool_huge_page() goes round over all nodes.
        """
        page = self.pools[size].page
        others = self.elsewhere.get(size, {}).values()
        has_file = page.has_demote and self.kernel.can_demote and size > min(self.pools)
        return has_file and not any(shown["free_hugepages"] for shown in others)

    def open_file(self, process: str, name: str, file: HugeFile) -> None:
        """Add a new file, which ``process`` has open."""
        file.mount.files.append(file)
        file.descriptors = 1
        self.files[name] = file
        self.processes[process].open_files.append(file)

    def map(self, process: str, mapping: PageMapping, noreserve: bool) -> None:
        """Reserve and map: hugetlbfs_file_mmap(), which lets the file grow to what is mapped of it.

        Raises OSError (ENOMEM).
        """
        owner, file = self.processes[process], mapping.file
        if not noreserve and mapping.is_shared:
            reserve_file(file, owner.group, mapping.first, mapping.count)
        elif not noreserve:
            reserve(file, owner.group, mapping.count)
            mapping.reservation = PrivateReservation(owner.group)
        file.length = max(file.length, mapping.end)
        owner.add(mapping)

    def drop(self, process: Process, mappings: Sequence[PageMapping]) -> None:
        """Unmap what a process has mapped, and free files that nobody uses then."""
        files = {id(one.file): one.file for one in mappings}
        unmap(process, mappings)
        self.evict_unused(files.values())

    def evict_unused(self, files: Iterable[HugeFile]) -> None:
        """Free inodes that nothing refers to: hugetlbfs_evict_inode()."""
        for file in files:
            if file.is_in_use or file not in file.mount.files:
                continue
            truncate(file, 0)
            file.mount.files.remove(file)
            if file.mount.inodes is not None:
                file.mount.free_inodes += 1
