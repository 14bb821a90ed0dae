"""A machine whose huge pages are used: every operation changes pools, files and processes as the kernel does.

Raises what the system calls give: OSError with their errno, AccessFault for a signal.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence

from hugepage_qa.oracle.pool.pool_charges import ControlGroup, PrivateReservation, Subpool
from hugepage_qa.oracle.pool.pool_counters import FreshMemory, PageSize, Pool
from hugepage_qa.oracle.pool.pool_fault import allocate_page, touch
from hugepage_qa.oracle.pool.pool_files import HugeFile, Mount, Process
from hugepage_qa.oracle.pool.pool_files import Mapping as PageMapping
from hugepage_qa.oracle.pool.pool_kernel import PoolKernel
from hugepage_qa.oracle.pool.pool_mappings import (
    discard,
    fork,
    move,
    punch_hole,
    reserve,
    reserve_file,
    truncate,
    unmap,
)


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
        self._internal = {size: Mount(pool) for size, pool in self.pools.items()}

    def start_process(self, name: str) -> None:
        """Add a process that has nothing mapped."""
        self.processes[name] = Process(self._root)

    def make_group(self, name: str) -> None:
        """Add a control group below the root, without limits."""
        self.groups[name] = ControlGroup(name)

    # --- administrator ---

    def set_count(self, size: int, count: int, node: int | None = None) -> None:
        """Write nr_hugepages, of ``node`` or of the machine."""
        if node is not None and node != self.home:
            raise ValueError(f"pages of node {node}: only those of node {self.home} change")
        self.pools[size].set_count(count)

    def can_demote(self, size: int) -> bool:
        """Tell whether a pool has the file demote: there is a smaller size, and the kernel is new enough."""
        return self.kernel.can_demote and size > min(self.pools)

    def demote(self, size: int, count: int) -> None:
        """Write demote. Raises OSError (EBUSY)."""
        smaller = max(other for other in self.pools if other < size)
        self.pools[size].demote(count, self.pools[smaller])

    def mount(self, name: str, size: int, least: int | None, most: int | None, inodes: int | None) -> None:
        """Mount a hugetlbfs with limits in bytes and at least one inode: hugetlbfs_fill_super().

        Raises OSError (EINVAL, ENOMEM).
        """
        least_pages = None if least is None else least // size
        most_pages = None if most is None else most // size
        if most_pages is not None and (least_pages or 0) > most_pages:
            raise OSError(errno.EINVAL, "min_size is above size")
        pool = self.pools[size]
        subpool = None
        if least is not None or most is not None:
            if least_pages and not pool.reserve(least_pages):
                raise OSError(errno.ENOMEM, "not enough pages for min_size")
            subpool = Subpool(pool, least_pages, most_pages)
        # the root directory takes one
        self.mounts[name] = Mount(pool, subpool, inodes, 0 if inodes is None else inodes - 1)

    def unmount(self, name: str) -> None:
        """Unmount. Raises OSError (EBUSY) while a file is open or mapped."""
        mount = self.mounts[name]
        if any(file.descriptors or file.mappings for file in mount.files):
            raise OSError(errno.EBUSY, "a file is in use")
        for file in list(mount.files):
            file.is_linked = False
            self._evict_unused([file])
        if mount.subpool is not None:
            mount.subpool.unmount()
        del self.mounts[name]

    # --- files ---

    def create_file(self, process: str, name: str, mount: str) -> None:
        """Create a file and keep it open. Raises OSError (ENOSPC) when the mount has no inode left."""
        target = self.mounts[mount]
        if target.inodes is not None:
            if target.free_inodes == 0:
                raise OSError(errno.ENOSPC, "no inode is left")
            target.free_inodes -= 1
        self._open(process, name, HugeFile(target))

    def make_memfd(self, process: str, name: str, size: int) -> None:
        """Make a file of length 0 that has no name in a file system."""
        self._open(process, name, HugeFile(self._internal[size], is_linked=False))

    def _open(self, process: str, name: str, file: HugeFile) -> None:
        file.mount.files.append(file)
        file.descriptors = 1
        self.files[name] = file
        self.processes[process].open_files.append(file)

    def make_segment(self, process: str, name: str, size: int, pages: int) -> None:
        """Make a SysV segment: newseg(), hugetlb_file_setup(). Raises OSError (ENOMEM)."""
        file = HugeFile(self._internal[size], length=pages, is_segment=True)
        reserve_file(file, self.processes[process].group, 0, pages)
        file.mount.files.append(file)
        self.files[name] = file

    def unlink(self, name: str) -> None:
        """Take the name of a file away."""
        self.files[name].is_linked = False
        self._evict_unused([self.files[name]])

    def close(self, process: str, name: str) -> None:
        """Close a file."""
        file = self.files[name]
        self.processes[process].open_files.remove(file)
        file.descriptors -= 1
        self._evict_unused([file])

    def allocate(self, process: str, name: str, first: int, pages: int, keep_size: bool) -> None:
        """hugetlbfs_fallocate(). Raises OSError (ENOSPC); what was allocated before the error stays."""
        file, group = self.files[name], self.processes[process].group
        for index in range(first, first + pages):
            if index in file.pages:
                continue
            page = allocate_page(file, index, None, group)
            if page is None:
                raise OSError(errno.ENOSPC, "no page can be had")
            page.restores_reservation = False
            page.is_cached = True
            file.pages[index] = page
        if not keep_size:
            file.length = max(file.length, first + pages)

    def truncate(self, name: str, pages: int) -> None:
        """ftruncate()."""
        truncate(self.files[name], pages)

    def punch_hole(self, name: str, first: int, pages: int) -> None:
        """fallocate(FALLOC_FL_PUNCH_HOLE)."""
        punch_hole(self.files[name], first, pages)

    # --- memory ---

    def map_file(
        self, process: str, address: int, name: str, first: int, pages: int, shared: bool, noreserve: bool
    ) -> None:
        """mmap() a file. Raises OSError (ENOMEM)."""
        self._map(self.processes[process], PageMapping(self.files[name], address, first, pages, shared), noreserve)

    def map_anonymous(self, process: str, address: int, size: int, pages: int, shared: bool, noreserve: bool) -> None:
        """mmap() memory: a file that nobody else sees. Raises OSError (ENOMEM)."""
        file = HugeFile(self._internal[size], length=pages, is_linked=False)
        self._map(self.processes[process], PageMapping(file, address, 0, pages, shared), noreserve)
        file.mount.files.append(file)

    def attach(self, process: str, address: int, name: str) -> None:
        """shmat(): a segment has its reservation from shmget() on."""
        file = self.files[name]
        self._map(self.processes[process], PageMapping(file, address, 0, file.length, True), noreserve=True)

    def _map(self, process: Process, mapping: PageMapping, noreserve: bool) -> None:
        """Reserve and map: hugetlbfs_file_mmap(), which lets the file grow to what is mapped of it."""
        file = mapping.file
        if not noreserve and mapping.is_shared:
            reserve_file(file, process.group, mapping.first, mapping.count)
        elif not noreserve:
            reserve(file, process.group, mapping.count)
            mapping.reservation = PrivateReservation(process.group)
        file.length = max(file.length, mapping.end)
        process.add(mapping)

    def touch(self, process: str, address: int, value: int | None = None) -> int:
        """Read or write a page; return what it holds. Raises AccessFault."""
        return touch(self.processes[process], address, value)

    def unmap(self, process: str, address: int, end: int) -> None:
        """munmap()."""
        owner = self.processes[process]
        self._drop(owner, owner.cut(address, end))

    def _drop(self, process: Process, mappings: Sequence[PageMapping]) -> None:
        """Unmap what a process has mapped, and free files that nobody uses then."""
        files = {id(one.file): one.file for one in mappings}
        unmap(process, mappings)
        self._evict_unused(files.values())

    def discard(self, process: str, address: int, end: int) -> None:
        """madvise(MADV_DONTNEED). Raises OSError as ``discard`` does."""
        discard(self.processes[process], address, end, self.kernel)

    def move(self, process: str, address: int, end: int, target: int) -> None:
        """mremap() to ``target``. Raises OSError as ``move`` does."""
        move(self.processes[process], address, end, target, self.kernel)

    def grow(self, process: str, address: int) -> None:
        """mremap() to more pages. Raises OSError: EFAULT where nothing is mapped, else EINVAL: align_hugetlb()."""
        if self.processes[process].find(address) is None:
            raise OSError(errno.EFAULT, "not mapped")
        raise OSError(errno.EINVAL, "mappings of huge pages do not grow")

    # --- processes ---

    def fork(self, process: str, child: str) -> None:
        """Copy a process."""
        self.processes[child] = fork(self.processes[process], self.kernel)

    def exit(self, process: str) -> None:
        """End a process: exit_mmap(), then its files are closed."""
        owner = self.processes.pop(process)
        self._drop(owner, list(owner.mappings))
        for file in owner.open_files:
            file.descriptors -= 1
        self._evict_unused(owner.open_files)

    def _evict_unused(self, files: Iterable[HugeFile]) -> None:
        """Free inodes that nothing refers to: hugetlbfs_evict_inode()."""
        for file in files:
            if file.is_in_use or file not in file.mount.files:
                continue
            truncate(file, 0)
            file.mount.files.remove(file)
            if file.mount.inodes is not None:
                file.mount.free_inodes += 1
