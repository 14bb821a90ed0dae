"""Pages of each kind whose faults a program handles itself, and threads that store there."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.cases.thp_memory import map_aligned, pmd_size
from hugepage_qa.cases.thp_policy import advised, huge_pages, huge_zeroes
from hugepage_qa.cases.userfaultfd import Feature, Mode, Userfault, offered_features
from hugepage_qa.cases.userfaultfd_messages import PageFault, Told
from hugepage_qa.kernel.uapi import MREMAP_MAYMOVE

#: pages of each kind, with a thread for each
PAGES = 3
#: the threads' own words, which they store first of all, and store again (use_again() in repeaters.c)
WORD_OF_A_THREAD = 64
_VALUE = 1 << 40
_NO_FEATURE = Feature(0)


@dataclass(frozen=True)
class Watched:
    """Pages whose faults a program handles, and how it handles that of one page, waking who waits or not.

    ``content`` is what ``fill`` stored of which the pages are made, or as which they lie there; None for zeroes. Where
    the program is told of exact addresses threads wait for words in each part of a page, else at its beginning.
    """

    name: str
    memory: Memory
    fault: Userfault
    told: Told
    handle: Callable[[int, bool], object]
    content: int | None = _VALUE

    def place(self, page: int) -> int:
        """Return how many bytes into its page the thread of a page stores, before the words that threads have there."""
        if not self.fault.is_exact:
            return 0
        return (0, self.memory.size // 2, self.memory.size - PAGES * WORD_OF_A_THREAD)[page]

    def told_of(self, pages: Iterable[int]) -> list[PageFault]:
        """Return what is told of threads that wait for ``pages``, in their order."""
        if not self.fault.is_exact:
            return [PageFault(self.told, self.memory.at(page)) for page in pages]
        # a thread stores what is beside its word first
        words = {page: self.place(page) + page * WORD_OF_A_THREAD + WORD for page in pages}
        return [PageFault(self.told, self.memory.at(page) + offset) for page, offset in words.items()]

    def own_word(self, page: int) -> int:
        """Return the address of the word that the thread of a page stores first of all."""
        return self.memory.at(page) + self.place(page) + page * WORD_OF_A_THREAD

    def filled(self, page: int) -> int:
        """Return what is in that word before: each page is filled alike from a source, or as they lie."""
        if self.content is None:
            return 0
        lies_there = bool(self.told & (Told.MINOR | Told.WRITE_PROTECTED))
        in_page = self.place(page) + page * WORD_OF_A_THREAD
        return self.content + in_page + (page * self.memory.size if lies_there else 0)


def addresses(live: Live) -> tuple[Feature, ...]:
    """Return the features by which a program is told of pages, and of the byte that was accessed."""
    return (_NO_FEATURE,) if _tells_pages_alone(live) else (_NO_FEATURE, Feature.EXACT_ADDRESS)


def told_address(live: Live, address: int) -> int:
    """Return what a program that is told of exact addresses is told of an access to ``address``."""
    return address - address % live.base_page if _tells_pages_alone(live) else address


def _tells_pages_alone(live: Live) -> bool:
    """Tell whether the processor names the base page alone (get_fault_address() in arch/s390/mm/fault.c)."""
    return live.host.architecture == "s390x"


def judge_each(live: Live, kinds: Iterable[Callable[[], Watched]], *judges: Callable[[Live, Watched], None]) -> None:
    """Have each of ``judges`` judge memory of each of ``kinds``, which is made anew for it and given back."""
    for make in kinds:
        for judge in judges:
            watched = make()
            with live.about(watched.name):
                judge(live, watched)
            watched.memory.actor.end()


def hugetlb_kinds(live: Live, more: Feature = _NO_FEATURE) -> list[Callable[[], Watched]]:
    """Return makers of hugetlb pages: missing, protected ones, and those of a file that are not mapped yet."""

    def missing(*, shared: bool) -> Watched:
        memory = live.map(PAGES, shared=shared)
        source = live.map(1, memory.actor)
        source.fill(_VALUE)
        return _missing(f"missing, shared {shared}", memory, source, Feature.MISSING_HUGETLBFS | more)

    def protected() -> Watched:
        memory = live.map(PAGES)
        memory.fill(_VALUE)
        return _protected("protected", memory, Feature.WP_HUGETLBFS_SHMEM | more)

    def of_a_file() -> Watched:
        file = new_memfd(live, pages=PAGES)
        file.map(PAGES).fill(_VALUE)
        return _of_a_file("in the file", file.map(PAGES), Feature.MINOR_HUGETLBFS | more)

    offered = offered_features(live)
    kinds: list[Callable[[], Watched]] = [partial(missing, shared=False), partial(missing, shared=True)]
    kinds += [protected] if Feature.WP_HUGETLBFS_SHMEM in offered else []
    return kinds + ([of_a_file] if Feature.MINOR_HUGETLBFS in offered else [])


def marked_kinds(live: Live) -> list[Callable[[], Watched]]:
    """Return makers of hugetlb pages that were protected before they were there, and are missing."""

    def marked(*, shared: bool) -> Watched:
        memory = live.map(PAGES, shared=shared)
        source = live.map(1, memory.actor)
        source.fill(_VALUE)
        features = Feature.MISSING_HUGETLBFS | Feature.WP_HUGETLBFS_SHMEM
        modes = Mode.MISSING | Mode.WRITE_PROTECTED
        watched = _missing(f"missing and protected, shared {shared}", memory, source, features, modes)
        watched.fault.write_protect(length=memory.length)
        return watched

    return [partial(marked, shared=shared) for shared in (False, True)]


def other_kinds(live: Live, more: Feature = _NO_FEATURE) -> list[Callable[[], Watched]]:
    """Return makers of base pages: missing ones, which are handled in each way, protected ones, and those of a file."""
    offered = offered_features(live)
    protecting = {False: Feature.PAGEFAULT_FLAG_WP, True: Feature.WP_HUGETLBFS_SHMEM}

    def pages(*, shared: bool, fills: bool) -> Memory:
        # base pages side by side, in the middle of what could be a huge page
        memory = map_aligned(live, 1, pmd_size(live), shared=shared)
        first = memory.address + memory.size // 2
        part = Memory(live, memory.actor, first, PAGES, live.base_page)
        if fills:
            part.fill(_VALUE)
        return part

    def source_for(memory: Memory) -> Memory:
        source = map_aligned(live, 1, live.base_page, actor=memory.actor)
        source.fill(_VALUE)
        return source

    def missing(*, shared: bool) -> Watched:
        memory = pages(shared=shared, fills=False)
        return _missing(f"missing, shared {shared}", memory, source_for(memory), Feature.MISSING_SHMEM | more)

    def zeroes() -> Watched:
        memory = pages(shared=False, fills=False)
        fault = Userfault(memory, Mode.MISSING, more, waits=True)
        return Watched("zeroes", memory, fault, Told.WRITE, lambda page, wakes: fault.zero(page, wakes=wakes), None)

    def moved() -> Watched:
        memory = pages(shared=False, fills=False)
        fault = Userfault(memory, Mode.MISSING, Feature.MOVE | more, waits=True)

        def move(page: int, wakes: bool) -> None:
            fault.move(source_for(memory), page, wakes=wakes)

        return Watched("moved", memory, fault, Told.WRITE, move)

    def protected(*, shared: bool) -> Watched:
        return _protected(f"protected, shared {shared}", pages(shared=shared, fills=True), protecting[shared] | more)

    def of_a_file() -> Watched:
        memory = pages(shared=True, fills=True)
        # mapped once more (mremap(2) of no bytes), where nothing of it is mapped yet
        actor, length = memory.actor, memory.length
        other = actor.call("mremap", memory.address, 0, length, MREMAP_MAYMOVE) % (1 << 64)
        return _of_a_file("in the file", Memory(live, actor, other, PAGES, live.base_page), Feature.MINOR_SHMEM | more)

    kinds: list[Callable[[], Watched]] = [partial(missing, shared=False), partial(missing, shared=True), zeroes]
    kinds += [moved] if Feature.MOVE in offered else []
    kinds += [partial(protected, shared=shared) for shared, feature in protecting.items() if feature in offered]
    return kinds + ([of_a_file] if Feature.MINOR_SHMEM in offered else [])


def huge_kinds(live: Live, more: Feature = _NO_FEATURE) -> list[Callable[[], Watched]]:
    """Return makers of transparent huge pages: missing, protected ones, and those of zeroes that are protected."""

    def missing() -> Watched:
        memory = advised(live, PAGES)
        source = map_aligned(live, 1, memory.size, actor=memory.actor)
        source.fill(_VALUE)
        return _missing("missing huge pages", memory, source, more)

    def protected() -> Watched:
        memory = huge_pages(live, PAGES)
        memory.fill(_VALUE)
        return _protected("protected huge pages", memory, Feature.PAGEFAULT_FLAG_WP | more)

    def zeroes() -> Watched:
        watched = _protected(
            "protected huge pages of zeroes", huge_zeroes(live, PAGES), Feature.PAGEFAULT_FLAG_WP | more
        )
        return replace(watched, content=None)

    is_offered = Feature.PAGEFAULT_FLAG_WP in offered_features(live)
    return [missing, *([protected, zeroes] if is_offered else [])]


def _missing(name: str, memory: Memory, source: Memory, feature: Feature, modes: Mode = Mode.MISSING) -> Watched:
    fault = Userfault(memory, modes, feature, waits=True)
    return Watched(name, memory, fault, Told.WRITE, lambda page, wakes: fault.copy(source, page, wakes=wakes))


def _protected(name: str, memory: Memory, feature: Feature) -> Watched:
    fault = Userfault(memory, Mode.WRITE_PROTECTED, feature, waits=True)
    fault.write_protect(length=memory.length)

    def allow(page: int, wakes: bool) -> None:
        fault.write_protect(page, on=False, wakes=wakes)

    return Watched(name, memory, fault, Told.WRITE | Told.WRITE_PROTECTED, allow)


def _of_a_file(name: str, memory: Memory, feature: Feature) -> Watched:
    fault = Userfault(memory, Mode.MINOR, feature, waits=True)

    def go_on(page: int, wakes: bool) -> None:
        fault.go_on(offset=page * memory.size, wakes=wakes)

    return Watched(name, memory, fault, Told.WRITE | Told.MINOR, go_on)
