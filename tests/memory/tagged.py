"""Tagged memory in huge pages (arm64, MTE): an access by a pointer with another tag than the memory has is refused."""

import signal

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import new_memfd
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.thp_policy import huge_pages
from hugepage_qa.kernel.cpu import read_cpu
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.actor import Actor, Fault

TAGGED = Area("memory/tagged")

DOC = "Documentation/arch/arm64/memory-tagging-extension.rst"
# arch/arm64/include/uapi/asm/mman.h
_PROT_MTE = 0x20
# include/uapi/linux/prctl.h: tags are checked at once, and those of random tags that are allowed are all
_PR_SET_TAGGED_ADDR_CTRL, _TAGGED_ADDR_ENABLE, _TCF_SYNC = 55, 1, 2
# include/uapi/asm-generic/siginfo.h
_SEGV_MTESERR = 9
_TAG_SHIFT, _TAG, _TAGGED_BYTES = 56, 5, 4096


@TAGGED.case(
    "a page of hugetlb, of a file or not, has tags where it is mapped with PROT_MTE, all 0 at first; a child has them,"
    " too, and the next one who gets the page has none of them",
    f"{DOC}; fs/hugetlbfs/inode.c hugetlbfs_file_mmap(); arch/arm64/mm/copypage.c copy_highpage() (25c17c4b55de)",
    since="6.13",
    sizes=Sizes.BUDDY,
    pages=2,
)
def hugetlb_page(live: Live) -> None:
    for shared, of_a_file in ((False, False), (True, False), (False, True), (True, True)):
        with live.about(f"shared {shared}, of a file {of_a_file}"):
            actor = _checked(live)
            if of_a_file:
                memory = new_memfd(live, actor).map(1, shared=shared, prot=READ_WRITE | _PROT_MTE)
            else:
                memory = live.map(1, actor, shared=shared, prot=READ_WRITE | _PROT_MTE)
            _expect_tags(live, memory, shared=shared)
            actor.end()
            live.expect_pool(nr=2, free=2)


@TAGGED.case(
    "a huge page has tags where it is mapped with PROT_MTE, all 0 at first, and a child has them, too",
    f"{DOC}; arch/arm64/kernel/mte.c mte_sync_tags(); mm/huge_memory.c copy_huge_pmd(), do_huge_pmd_wp_page()",
    since="5.10",
    sizes=Sizes.ONCE,
)
def transparent_huge_page(live: Live) -> None:
    memory = huge_pages(live)
    _need_tags(live, memory.actor)
    memory.protect(READ_WRITE | _PROT_MTE)
    _expect_tags(live, memory, shared=False)


def _checked(live: Live) -> Actor:
    actor = live.actor()
    _need_tags(live, actor)
    return actor


def _need_tags(live: Live, actor: Actor) -> None:
    """Have the tags of pointers of ``actor`` checked. Raises CannotRun where the processor has none."""
    if "mte" not in read_cpu(live.host).features:
        raise CannotRun("this processor has no tagged memory (MTE of arm64)")
    actor.call("prctl", _PR_SET_TAGGED_ADDR_CTRL, _TAGGED_ADDR_ENABLE | _TCF_SYNC, 0, 0, 0)


def _expect_tags(live: Live, memory: Memory, *, shared: bool) -> None:
    """Expect a page whose tags are 0 to be tagged, in its first bytes, for its owner, and for a child."""
    actor, last = memory.actor, memory.address + memory.length - _TAGGED_BYTES
    memory.fill()
    live.expect("mt in VmFlags", True, "mt" in memory.smaps().flags)
    for place in (memory.address, last):
        _expect_refused(live, actor, place | _TAG << _TAG_SHIFT)
        actor.tag(place, _TAGGED_BYTES, _TAG)
        _expect_refused(live, actor, place)
    child = actor.fork()
    for one in (actor, child):
        for place in (memory.address, last):
            tagged = place | _TAG << _TAG_SHIFT
            live.expect("word of tagged memory", 1 + place - memory.address, one.read(tagged))
            _expect_refused(live, one, place)
    # a copy has the tags, too
    child.write(memory.address | _TAG << _TAG_SHIFT, 77)
    for place in (memory.address, last):
        _expect_refused(live, child, place)
    found = actor.read(memory.address | _TAG << _TAG_SHIFT)
    live.expect("first word of the parent", 77 if shared else 1, found)
    between = memory.address + _TAGGED_BYTES
    live.expect("words that changed", 0, memory.wrong(_TAGGED_BYTES, memory.length - 2 * _TAGGED_BYTES))
    _expect_refused(live, actor, between | _TAG << _TAG_SHIFT)
    child.end()


def _expect_refused(live: Live, actor: Actor, pointer: int) -> None:
    try:
        actor.read(pointer)
    except Fault as fault:
        live.expect("signal and code", (signal.SIGSEGV, _SEGV_MTESERR), (fault.signal, fault.code))
    else:
        live.expect("signal and code", (signal.SIGSEGV, _SEGV_MTESERR), None)


class Tagged(LiveTest):
    """Tagged memory.

    :avocado: enable
    """

    def test_tagged(self) -> None:
        """Every case, those on hugetlb pages for every page size."""
        self.run_area(TAGGED)
