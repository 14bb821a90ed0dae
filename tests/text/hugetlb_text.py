"""Text of programs on hugetlb pages: what programs, and libraries for them, copy there and map in its place."""

import mmap

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.hugetlb_files import HugeFile, new_memfd, open_again
from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.places import need_places_of_any_size
from hugepage_qa.cases.reached_from_outside import read_of_another
from hugepage_qa.cases.text_program import TextProgram, start_again, start_used
from hugepage_qa.kernel.uapi import MAP_FIXED, MREMAP_FIXED, MREMAP_MAYMOVE
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.process.text_program_build import STEP, Recipe
from hugepage_qa.sizes import MIB

HUGETLB_TEXT = Area("text/hugetlb-text", sizes=Sizes.BUDDY)

IN_PLACE = "mmap(2) MAP_FIXED; mm/hugetlb.c hugetlb_fault(), hugetlb_wp(); fs/hugetlbfs/inode.c hugetlbfs_file_mmap()"
READ_EXECUTE = mmap.PROT_READ | mmap.PROT_EXEC
#: a program with twice as much text is linked, and loaded into machines
_LARGEST = 32 * MIB
#: between the functions of two pages of code, which execute nothing there
_UNUSED = 2048


@HUGETLB_TEXT.case(
    "text in a file of huge pages that is mapped in its place is executed from there, by all who map the file",
    IN_PLACE,
    pages=3,
)
def shared_text(live: Live) -> None:
    first = _start(live)
    file, copy = _text_in_a_file(live, first)
    copy.unmap()
    second = start_again(live, first.built)
    again = open_again(live, file, second.actor)
    for program, its in ((first, file), (second, again)):
        _expect_hugetlb(live, program, _map_in_place(live, program, its))
    # one page for both, and what each of them may have to copy is reserved
    live.expect_pool(nr=3, free=2, resv=2)
    child = live.fork(first.actor)
    live.expect("pages of code that are wrong in a child", 0, child.run(first.code, first.built.pages, STEP))
    live.expect_pool(nr=3, free=2, resv=2)


@HUGETLB_TEXT.case(
    "what a program writes to a segment on huge pages, mapped privately, is a copy of its own, and others see the file",
    IN_PLACE,
    pages=3,
)
def written_segment(live: Live) -> None:
    first = _start(live)
    file, _copy = _text_in_a_file(live, first)
    second = start_again(live, first.built)
    again = open_again(live, file, second.actor)
    mapped = _map_in_place(live, first, file)
    _map_in_place(live, second, again)
    mapped.protect(READ_WRITE | mmap.PROT_EXEC)
    first.actor.write(mapped.address + _UNUSED, 7)
    live.expect_pool(nr=3, free=1, resv=1)
    live.expect("what the program has written", 7, first.actor.read(mapped.address + _UNUSED))
    live.expect("pages of code that are wrong", 0, first.actor.run(first.code, first.built.pages, STEP))
    second.touch()
    second.expect_intact()
    live.expect_pool(nr=3, free=1, resv=1)


@HUGETLB_TEXT.case(
    "text on anonymous huge pages that are moved to its place is executed from there",
    "mremap(2) MREMAP_FIXED; mm/hugetlb.c move_hugetlb_page_tables() (550a7d60bd5e)",
    since="5.16",
    pages=1,
)
def moved_text(live: Live) -> None:
    program = _start(live)
    memory = live.map(1, program.actor)
    _copy_text(live, program, memory.address)
    memory.protect(READ_EXECUTE)
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    block = _block(live, program)
    program.actor.call("mremap", memory.address, live.size, live.size, flags, block)
    _expect_hugetlb(live, program, Memory(live, program.actor, block, 1, live.size))
    live.expect_pool(nr=1, free=0)


def _start(live: Live) -> TextProgram:
    """Start a program with more than one huge page of text.

    Raises CannotRun where these are too large for that, or cannot lie beside the rest of it.
    """
    need_places_of_any_size(live)
    if live.size > _LARGEST:
        raise CannotRun(f"no program is built with more than {_LARGEST >> 20} MiB of text in a page")
    return start_used(live, Recipe(live.size, tail=live.size // 2))


def _block(live: Live, program: TextProgram) -> int:
    """Return the address of the last whole huge page of its text."""
    return program.whole_blocks(live.size)[-1]


def _text_in_a_file(live: Live, program: TextProgram) -> tuple[HugeFile, Memory]:
    """Have the program copy its text into a new file, and return that, and where the program has it mapped to write."""
    file = new_memfd(live, program.actor)
    copy = file.map(1)
    _copy_text(live, program, copy.address)
    return file, copy


def _copy_text(live: Live, program: TextProgram, address: int) -> None:
    """Have the program copy the last whole huge page of its text."""
    pack = program.actor.uapi.pack
    local, remote = pack("QQ", address, live.size), pack("QQ", _block(live, program), live.size)
    copied = read_of_another(live, program.actor, program.actor.pid, local, remote)
    live.expect("bytes copied", live.size, copied)


def _map_in_place(live: Live, program: TextProgram, file: HugeFile) -> Memory:
    """Map the file where the last whole huge page of the text is, as a program's segment is mapped."""
    return file.map(1, shared=False, prot=READ_EXECUTE, at=_block(live, program), flags=MAP_FIXED)


def _expect_hugetlb(live: Live, program: TextProgram, mapped: Memory) -> None:
    """Expect the text to be in hugetlb pages there, and every byte of it as it was."""
    program.touch()
    program.expect_intact()
    live.expect("KernelPageSize", live.size, mapped.smaps().kernel_page_size)
    live.expect("is executable", True, "x" in mapped.smaps().permissions)


class HugetlbText(LiveTest):
    def test_hugetlb_text(self) -> None:
        self.run_area(HUGETLB_TEXT)
