"""A machine whose huge pages are used: every operation changes pools, files and processes as the kernel does.

Raises what the system calls give: OSError with their errno, AccessFault for a signal.
"""

import errno
from collections.abc import Iterable

from hugepage_qa.model.hugetlb_pool import FreshMemory, PageSize, Pool
from hugepage_qa.model.hugetlb_pool_cgroup import ControlGroup
from hugepage_qa.model.hugetlb_pool_fault import allocate_page, touch
from hugepage_qa.model.hugetlb_pool_file import HugeFile, Mount
from hugepage_qa.model.hugetlb_pool_file import Mapping as PageMapping
from hugepage_qa.model.hugetlb_pool_kernel import PoolKernel
from hugepage_qa.model.hugetlb_pool_process import Process
from hugepage_qa.model.hugetlb_pool_reservation import PrivateReservation
from hugepage_qa.model.hugetlb_pool_reserve import reserve, reserve_file
from hugepage_qa.model.hugetlb_pool_subpool import Subpool
from hugepage_qa.model.hugetlb_pool_unmap import close_mapping, forget_page, punch_hole, truncate, unmap_pages
from hugepage_qa.model.known import Quirk

#: tables of pages of this size and up cover more than an int holds
_PAGES_WITH_LONG_TABLES = 512 << 20


class PoolMachine:
    """Pools, mounts, control groups, files and processes, by name.

    ``home``: the node that all pages lie on, None when that is open.
    """

    def __init__(self, kernel: PoolKernel, sizes: Iterable[PageSize], home: int | None = 0) -> None:
        self.kernel = kernel
        self.home = home
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
            raise ValueError(f"pages of node {node}: all lie on node {self.home}")
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

    def _drop(self, process: Process, mappings: Iterable[PageMapping]) -> None:
        """Unmap: first all pages, then the mappings with their reservations, then files that nobody uses."""
        mappings = list(mappings)
        pages = [(one.file.pool, page) for one in mappings for page in unmap_pages(one, one.first, one.end)]
        for pool, page in pages:
            forget_page(pool, page)
        for mapping in mappings:
            process.remove(mapping)
            close_mapping(mapping)
        self._evict_unused({id(one.file): one.file for one in mappings}.values())

    def discard(self, process: str, address: int, end: int) -> None:
        """madvise(MADV_DONTNEED). Raises OSError: EINVAL before Linux 5.18, ENOMEM where something is not mapped."""
        if not self.kernel.can_discard:
            raise OSError(errno.EINVAL, "not for huge pages")
        owner = self.processes[process]
        reached = address
        for mapping in owner.mappings:
            if mapping.address >= end or mapping.end_address <= address:
                continue
            first, last = max(address, mapping.address), min(end, mapping.end_address)
            for page in unmap_pages(mapping, mapping.index(first), mapping.index(last)):
                forget_page(mapping.file.pool, page)
            reached = last if first == reached else reached
        if reached != end:
            raise OSError(errno.ENOMEM, "something is not mapped")

    def move(self, process: str, address: int, end: int, target: int) -> None:
        """mremap() to ``target``: move_vma().

        Raises OSError: EFAULT when the range is not of one mapping, EINVAL before Linux 5.16.
        """
        owner = self.processes[process]
        old = owner.find(address)
        if old is None or end > old.end_address:
            raise OSError(errno.EFAULT, "not one mapping")
        if not self.kernel.can_move:
            raise OSError(errno.EINVAL, "not for huge pages")
        moved = old.part(old.index(address), old.index(end))
        if self._fails_to_move(moved):
            if old.reservation is not None and self.kernel.follows(Quirk.FAILED_MOVE_ENDS_RESERVATION):
                close_mapping(moved)
                old.reservation = None
            raise OSError(errno.ENOMEM, "the length was truncated")
        moved.address = target
        for index in moved.present:
            del old.present[index]
        owner.add(moved)
        is_partial = moved.count < old.count
        if is_partial and old.reservation is not None and self.kernel.follows(Quirk.MOVE_FORGETS_RESERVATION):
            old.reservation = None
        for left in owner.cut(address, end):
            owner.remove(left)

    def _fails_to_move(self, moved: PageMapping) -> bool:
        """Tell whether the kernel takes a move for incomplete because its length does not fit into an int."""
        size = moved.file.pool.size
        length = moved.count * size
        if length % (1 << 32) < min(length, 1 << 31):
            return self.kernel.follows(Quirk.MOVE_LENGTH_TRUNCATED)
        # which page tables there are, and so how much is skipped, the model does not know
        return size >= _PAGES_WITH_LONG_TABLES and self.kernel.may_follow(Quirk.MOVE_LENGTH_TRUNCATED)

    def grow(self, process: str, address: int) -> None:
        """mremap() to more pages. Raises OSError: EFAULT where nothing is mapped, else EINVAL: align_hugetlb()."""
        if self.processes[process].find(address) is None:
            raise OSError(errno.EFAULT, "not mapped")
        raise OSError(errno.EINVAL, "mappings of huge pages do not grow")

    # --- processes ---

    def fork(self, process: str, child: str) -> None:
        """Copy a process: dup_mmap(), copy_hugetlb_page_range(). Private reservations stay with the parent."""
        parent = self.processes[process]
        copy = Process(parent.group, open_files=list(parent.open_files))
        for file in copy.open_files:
            file.descriptors += 1
        for mapping in parent.mappings:
            twin = mapping.part(mapping.first, mapping.end)
            twin.reservation, twin.has_lost_page = None, False
            if not self._copies_pages(mapping):
                twin.present = {}
            for page in twin.present.values():
                page.mapped += 1
            mapping.file.insert_after(twin, mapping)
            copy.adopt(twin)
        self.processes[child] = copy

    def _copies_pages(self, mapping: PageMapping) -> bool:
        """Tell whether fork() copies page table entries: vma_needs_copy()."""
        if not mapping.is_anonymous and self.kernel.copies_tables_lazily:
            return False
        if mapping.file.pool.page.has_pmd_entries or not mapping.present:
            return True
        return not self.kernel.may_follow(Quirk.FORK_LOSES_PAGES)

    def exit(self, process: str) -> None:
        """End a process: exit_mmap(), then its files are closed."""
        owner = self.processes.pop(process)
        self._drop(owner, owner.mappings)
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
