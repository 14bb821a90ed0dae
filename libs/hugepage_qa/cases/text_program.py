"""A built program while it runs: how its text is mapped, how much of it is huge, and whether its code is right."""

from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.oracle.program_text import Kind, Segment, TextMapping, round_up
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.text_program_build import STEP, BuiltText, Recipe


class TextProgram:
    """A running program whose text is ``built``."""

    def __init__(self, live: Live, built: BuiltText, actor: Actor) -> None:
        self._live = live
        self.built = built
        self.actor = actor
        self.code = actor.text()

    @property
    def bias(self) -> int:
        """What the kernel or the dynamic linker added to the addresses in the file, in bytes."""
        if self.built.elf.kind is Kind.FIXED:
            return 0
        first = self.mappings()[0]
        segment = self.built.elf.segments[self.built.elf.text]
        return first.start - self._page_of(segment)

    def _page_of(self, segment: Segment) -> int:
        """Return where the page begins that a segment begins in: from there on it is mapped."""
        return segment.address // self._live.base_page * self._live.base_page

    def mappings(self) -> tuple[MemoryMapping, ...]:
        """Return the executable mappings of the file, as smaps shows them. Raises Failed where there is none."""
        ours = tuple(one for one in self.all_mappings() if "x" in one.permissions and one.path == self.built.file)
        if not ours:
            self._live.fail(f"/proc/{self.actor.pid}/smaps", f"a mapping of {self.built.file}", "none")
        return ours

    def all_mappings(self) -> tuple[MemoryMapping, ...]:
        """Return all that the process has mapped, as smaps shows it."""
        return read_smaps(ObservedTree(self._live.host), self.actor.pid) or ()

    def constants(self) -> MemoryMapping:
        """Return the mapping of the constants, which lie in the segment behind the text. Raises Failed without one."""
        start = self.bias + self._page_of(self.built.elf.segments[self.built.elf.text + 1])
        found = [one for one in self.all_mappings() if one.start == start and one.path == self.built.file]
        if not found:
            self._live.fail(f"/proc/{self.actor.pid}/smaps", f"a mapping of {self.built.file} at {start:#x}", "none")
        return found[0]

    def whole_blocks(self, size: int) -> tuple[int, ...]:
        """Return the addresses of the whole, aligned huge pages of ``size`` bytes in its text."""
        found = ((round_up(one.start, size), one.huge_bytes(self.built.elf.size, size)) for one in self.mapped())
        return tuple(start + offset for start, length in found for offset in range(0, length, size))

    def huge(self) -> int:
        """Return the bytes of its text in huge pages of a file."""
        return sum(mapping.file_pmd_mapped for mapping in self.mappings())

    def mapped(self) -> tuple[TextMapping, ...]:
        """Return its mappings of text, as the oracle takes them."""
        return tuple(TextMapping(one.start, one.end, one.offset) for one in self.mappings())

    def touch(self) -> None:
        """Execute a function of each page, and expect each to return what it was compiled to. Raises Fault.

        Text that a collapse, a split or an eviction had damaged would not.
        """
        wrong = self.actor.run(self.code, self.built.pages, STEP)
        self._live.expect("pages of code that are wrong", 0, wrong)

    def read_constants(self) -> None:
        """Read every byte of the segment with the constants. Raises Fault."""
        segment = self.built.elf.segments[self.built.elf.text + 1]
        self.actor.sum(self.bias + segment.address, segment.size)

    def expect_intact(self) -> None:
        """Expect every byte of its text to be as it was linked. Raises Fault."""
        segment = self.built.elf.segments[self.built.elf.text]
        found = self.actor.sum(self.bias + segment.address, segment.size)
        self._live.expect("checksum of the text", self.built.checksum, found)

    def advise(self, advice: int) -> None:
        """Give ``advice`` (MADV_*) on all of its text. Raises OSError."""
        for mapping in self.mapped():
            self.actor.call("madvise", mapping.start, mapping.end - mapping.start, advice)


def start_text(live: Live, recipe: Recipe, directory: str | None = None) -> TextProgram:
    """Build a program and start it; none of its code has run. It ends with the case at the latest."""
    return start_again(live, live.host.build_text(recipe, directory))


def start_used(live: Live, recipe: Recipe) -> TextProgram:
    """Build a program, start it, and run a function of each page of its text."""
    program = start_text(live, recipe)
    program.touch()
    return program


def evict(live: Live, recipe: Recipe) -> None:
    """Take the program of ``recipe``, which nobody runs, out of the page cache: one that is built again begins so."""
    live.host.build_text(recipe)


def start_again(live: Live, built: BuiltText) -> TextProgram:
    """Start a program that was built before, with what the page cache has of it."""
    return TextProgram(live, built, live.start_program(built.program))
