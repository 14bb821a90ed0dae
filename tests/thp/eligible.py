"""THPeligible of smaps: by what is mapped, where, how long it is, policy and advice, whoever has touched it."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_text import need_eligible, needs_advice
from hugepage_qa.cases.khugepaged_clock import let_nobody_else_act, let_rest
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.text_program import start_again
from hugepage_qa.cases.thp_memory import need_folios_of, pmd_size, room_for
from hugepage_qa.cases.thp_policy import ADVICES, allows, set_policy
from hugepage_qa.cases.thp_shared_memory import mount_tmpfs
from hugepage_qa.kernel.thp import DIRECTORY
from hugepage_qa.kernel.uapi import MADV_HUGEPAGE, MADV_NOHUGEPAGE, MAP_FIXED
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.oracle.program_text import Kind
from hugepage_qa.oracle.rules import THP_DOC
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.text_program_build import Recipe

ELIGIBLE = Area("thp/eligible", sizes=Sizes.ONCE)

PROC_DOC = "Documentation/filesystems/proc.rst THPeligible"
SHMEM_DOC = "Documentation/admin-guide/mm/transhuge.rst Hugepages in tmpfs/shmem"
SOURCE = "mm/huge_memory.c hugepage_vma_check(), __thp_vma_allowable_orders()"
#: huge pages that a place has room for
_ROOM = 3
#: how long files are, in huge pages: they end behind all that is mapped of them
_FILE = 4
_VALUE = 5
_EXECUTABLE = mmap.PROT_READ | mmap.PROT_EXEC
_KINDS = {mmap.MAP_PRIVATE: "private", mmap.MAP_SHARED: "shared"}
_OF_SHARED = ("always", "within_size", "advise", "never", "deny", "force")


@dataclass(frozen=True)
class _Place:
    """Where memory is mapped, in bytes from a border of huge pages on, and from where on in its file."""

    start: int
    length: int
    offset: int = 0


@ELIGIBLE.case(
    "THPeligible is 1 of anonymous memory that policy and advice give huge pages, if one lies in it as a whole,"
    " wherever it begins and ends, and 0 of all other, whether nobody has touched it, it was read, or it was written",
    f"{PROC_DOC}; {SOURCE}, transhuge_vma_suitable()",
    since="5.3",  # before, memory of any length and place was eligible
)
def eligible_memory(live: Live) -> None:
    let_rest(live)
    for policy in ("always", "madvise", "never"):
        set_policy(live, policy)
        actor = live.actor()
        for advice, place in _rows(live, policy == "always", _anonymous_places(pmd_size(live), live.base_page)):
            with live.about(f"{policy}, advice {advice}, {place}"):
                _expect_eligible(live, actor, place, None, advice, allows(policy, "inherit", advice))
        actor.end()


def _rows(live: Live, at_all: bool, places: Iterator[_Place]) -> Iterator[tuple[int | None, _Place]]:
    """Yield each advice and the place of a huge page, and if huge pages may be ``at_all`` the ``places`` without."""
    yield from ((advice, _Place(0, pmd_size(live))) for advice in ADVICES)
    if at_all:
        yield from ((None, place) for place in places)


def _anonymous_places(size: int, base: int) -> Iterator[_Place]:
    yield _Place(0, base)
    yield _Place(0, size - base)
    yield _Place(0, size + base)
    yield _Place(base, size)
    yield _Place(base, 2 * size - 2 * base)
    yield _Place(base, 2 * size - base)
    yield _Place(size - base, 2 * base)
    yield _Place(size - base, size)
    yield _Place(size - base, size + base)
    yield _Place(size // 2, 2 * size)


@ELIGIBLE.case(
    "THPeligible is 1 of shared memory and memfds that shmem_enabled gives huge pages, and 0 of others, of those whose"
    " base pages lie elsewhere in a huge page than in the file, and of a base page",
    f"{PROC_DOC}; {SHMEM_DOC} shmem_enabled; {SOURCE}; mm/shmem.c shmem_is_huge(), shmem_allowable_huge_orders()",
    since="5.3",  # before, memory of any length and place was eligible
)
def eligible_shared_memory(live: Live) -> None:
    let_nobody_else_act(live)
    need_folios_of(live, pmd_size(live))
    for policy in _OF_SHARED:
        live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
        actor = live.actor()
        file = actor.call("memfd_create", "eligible", 0)
        for advice, place in _rows(live, policy == "always", _shared_places(pmd_size(live), live.base_page)):
            with live.about(f"shmem_enabled={policy}, advice {advice}, {place}"):
                _expect_eligible(live, actor, place, file, advice, _allows_shared(policy, advice))
                if not place.offset:
                    _expect_eligible(live, actor, place, None, advice, _allows_shared(policy, advice), shared=True)
        actor.end()


@ELIGIBLE.case(
    "THPeligible is 1 of files of a tmpfs that huge= of their mount gives huge pages, and 0 of others; deny and force"
    " of shmem_enabled go before it, always and never do not",
    f"{PROC_DOC}; {SHMEM_DOC} huge=; {SOURCE}; mm/shmem.c shmem_is_huge(), shmem_huge_global_enabled()",
    since="5.3",  # before, memory of any length and place was eligible
)
def eligible_files(live: Live) -> None:
    let_nobody_else_act(live)
    need_folios_of(live, pmd_size(live))
    for of_mount in ("always", "within_size", "advise", "never"):
        point = mount_tmpfs(live, of_mount)
        for policy in ("always", "never", "deny", "force"):
            live.set_knob(f"{DIRECTORY}/shmem_enabled", policy)
            decides = policy if policy in ("deny", "force") else of_mount
            actor = live.actor()
            file = live.open(actor, f"{point}/{policy}")
            is_for_places = of_mount == "always" and policy == "never"
            for advice, place in _rows(live, is_for_places, _shared_places(pmd_size(live), live.base_page)):
                with live.about(f"huge={of_mount}, shmem_enabled={policy}, advice {advice}, {place}"):
                    _expect_eligible(live, actor, place, file, advice, _allows_shared(decides, advice))
            actor.end()


@ELIGIBLE.case(
    "THPeligible of a file or a memfd that gets huge pages within its size is 1 where its first huge page ends within"
    " the file, to the base page that has the last byte, and 0 where that reaches beyond, wherever in the file it lies;"
    " advice has it be 1, and none 0, nevertheless",
    f"{PROC_DOC}; {SHMEM_DOC} within_size: Also respect madvise hints; {SOURCE}; mm/shmem.c shmem_is_huge(),"
    " shmem_huge_global_enabled()",
    since="6.1",  # older kernels ask whether what lies before it is within the file
)
def eligible_within_size(live: Live) -> None:
    let_nobody_else_act(live)
    need_folios_of(live, pmd_size(live))
    live.set_knob(f"{DIRECTORY}/shmem_enabled", "within_size")
    size, page, actor = pmd_size(live), live.base_page, live.actor()
    files = live.open(actor, f"{mount_tmpfs(live, 'within_size')}/file"), actor.call("memfd_create", "within", 0)
    # no more than a base page of a huge page: since Linux 6.14 smaller ones are given to what has room for them
    ends = [at + more for at in (0, size, 2 * size) for more in (0, 1, page) if at + more]
    for (file, kind), end, advice in product(zip(files, ("file", "memfd"), strict=True), ends, ADVICES):
        actor.call("ftruncate", file, end)
        for offset, length in ((0, size), (0, 2 * size), (size, size), (size, 2 * size), (2 * size, size)):
            address = room_for(actor, _ROOM, size)
            actor.mmap(length, READ_WRITE, mmap.MAP_SHARED | MAP_FIXED, file, offset, address)
            memory = Memory(live, actor, address, 1, length)
            if advice is not None:
                memory.advise(advice)
            allowed = advice == MADV_HUGEPAGE or (advice is None and offset + size <= end)
            with live.about(f"{kind} of {end} bytes, {length} bytes from {offset} on, advice {advice}"):
                live.expect("THPeligible", allowed, memory.smaps().thp_eligible)
            memory.unmap()


def _shared_places(size: int, base: int) -> Iterator[_Place]:
    # of what is shorter than a huge page kernels since 6.11 tell what smaller pages it may have
    yield _Place(0, base)
    yield _Place(0, 2 * size, base)
    yield _Place(base, 2 * size)
    yield _Place(base, 2 * size - base, base)
    yield _Place(0, size, size)


def _allows_shared(policy: str, advice: int | None) -> bool:
    """Tell whether shmem_enabled or huge= gives huge pages within a file, which does not end there."""
    if advice == MADV_NOHUGEPAGE:
        return False
    return policy in ("always", "within_size", "force") or (policy == "advise" and advice == MADV_HUGEPAGE)


@ELIGIBLE.case(
    "THPeligible is 1 of text that may be huge, mapped privately or shared, that policy and advice give huge pages, and"
    " 0 of others, and where its base pages lie elsewhere in a huge page than in the file, advised or not",
    f"{PROC_DOC}; {THP_DOC} enabled; {SOURCE}, file_thp_enabled()",
    since="6.1",  # before, neither policy nor advice was asked
)
def eligible_text(live: Live) -> None:
    if needs_advice(live):
        raise CannotRun("the modes of hugetext decide what text becomes huge")
    let_nobody_else_act(live)
    set_policy(live, "always")
    library = start_again(live, live.host.build_text(Recipe(pmd_size(live), kind=Kind.LIBRARY)))
    need_eligible(live, library)
    for policy in ("always", "madvise", "never"):
        set_policy(live, policy)
        actor = live.actor()
        text = live.open(actor, library.built.file, os.O_RDONLY)
        # the file may end before what is mapped of it does: nobody touches that
        for kind, (advice, place) in product(
            (mmap.MAP_PRIVATE, mmap.MAP_SHARED),
            _rows(live, policy == "always", _shared_places(pmd_size(live), live.base_page)),
        ):
            address = room_for(actor, _ROOM, pmd_size(live)) + place.start
            actor.mmap(place.length, _EXECUTABLE, kind | MAP_FIXED, text, place.offset, address)
            memory = Memory(live, actor, address, 1, place.length)
            if advice is not None:
                memory.advise(advice)
            eligible = allows(policy, "inherit", advice) and _has_a_whole_page(live, place, is_of_a_file=True)
            with live.about(f"{policy}, {_KINDS[kind]}, advice {advice}, {place}"):
                live.expect("THPeligible", eligible, memory.smaps().thp_eligible)
            memory.unmap()
        actor.end()


@ELIGIBLE.case(
    "THPeligible is 0 of pages of a pool, private and shared, whatever policy there is: they are no transparent ones",
    f"{PROC_DOC}; {SOURCE}",
    since="5.0",
    sizes=Sizes.EACH,
    pages=1,
)
def ineligible_pool(live: Live) -> None:
    set_policy(live, "always")
    for shared in (False, True):
        memory = live.map(1, shared=shared)
        for touched in (False, True):
            if touched:
                memory.touch()
            live.expect(f"THPeligible, shared {shared}, touched {touched}", False, memory.smaps().thp_eligible)
        memory.unmap()
        live.expect_pool(nr=1, free=1)


def _expect_eligible(
    live: Live,
    actor: Actor,
    place: _Place,
    file: int | None,
    advice: int | None,
    allowed: bool,
    *,
    shared: bool = False,
) -> None:
    """Map memory at ``place``, of ``file`` or anonymous, and expect it to be eligible if huge pages are ``allowed``."""
    size = pmd_size(live)
    kind = mmap.MAP_SHARED if shared or file is not None else mmap.MAP_PRIVATE
    flags = kind | MAP_FIXED | (mmap.MAP_ANONYMOUS if file is None else 0)
    if file is not None:
        for length in (0, _FILE * size):
            actor.call("ftruncate", file, length)
    address = room_for(actor, _ROOM, size) + place.start
    actor.mmap(place.length, READ_WRITE, flags, -1 if file is None else file, place.offset, address)
    memory = Memory(live, actor, address, 1, place.length)
    if advice is not None:
        memory.advise(advice)
    eligible = allowed and _has_a_whole_page(live, place, is_of_a_file=kind == mmap.MAP_SHARED)
    for state, value in (("untouched", None), ("read", 0), ("written", _VALUE)):
        if value is not None:
            if value:
                memory.touch(value=value)
            live.expect(f"what it holds, {state}", value, memory.read())
        live.expect(f"THPeligible, {state}", eligible, memory.smaps().thp_eligible)
    memory.unmap()


def _has_a_whole_page(live: Live, place: _Place, *, is_of_a_file: bool) -> bool:
    """Tell whether a huge page lies in ``place`` as a whole, and in its file, if it has one, in the same way."""
    size = pmd_size(live)
    border = -(-place.start // size) * size
    is_in_phase = not is_of_a_file or (place.start - place.offset) % size == 0
    return is_in_phase and border + size <= place.start + place.length


class ThpEligible(LiveTest):
    def test_eligible(self) -> None:
        self.run_area(ELIGIBLE)
