"""Cases on the running machine: what they check, where the rule comes from, and what they need."""

import enum
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hugepage_qa.oracle.rules import Rule
from hugepage_qa.sizes import format_size
from hugepage_qa.version import KernelVersion

if TYPE_CHECKING:
    # who only chooses cases needs nothing that acts
    from hugepage_qa.cases.live import Live
    from hugepage_qa.machine.host import Host

Act = Callable[["Live"], None]
#: what the machine has for all cases of an area, from before the first to after the last
Around = Callable[["Host"], AbstractContextManager[object]]


class Sizes(enum.Enum):
    """For which page sizes of the machine a case runs."""

    EACH = "each page size"
    #: sizes that the buddy allocator has
    BUDDY = "page sizes up to the largest block of the buddy allocator"
    #: sizes beyond it
    GIGANTIC = "page sizes beyond the largest block of the buddy allocator"
    #: the size that /proc/meminfo counts
    DEFAULT = "the default page size"
    #: needs pages of all sizes at once, so a machine with room for this one
    LARGEST = "the largest page size"
    #: not about hugetlb: the machine need not have a pool
    ONCE = "once for the machine"

    def include(self, live: "Live") -> bool:
        """Tell whether the page size of ``live`` is among them."""
        match self:
            case Sizes.EACH | Sizes.ONCE:
                return True
            case Sizes.BUDDY:
                return not live.is_gigantic
            case Sizes.GIGANTIC:
                return live.is_gigantic
            case Sizes.DEFAULT:
                return live.is_default
            case Sizes.LARGEST:
                return live.is_largest


@dataclass(frozen=True)
class Case:
    """A case: its name within the area, the rule that it checks, what it does, and what it needs.

    ``pages`` must be available for it (the harness reserves them), ``nodes`` must have memory.
    """

    name: str
    rule: Rule
    act: Act
    pages: int
    nodes: int
    sizes: Sizes


class Area:
    """The cases of one file below tests/; ``name`` starts the names of their results.

    ``sizes`` are those of every case that names none itself. No case may need ``around``: a case can run alone. With
    ``first`` nothing else may have been done on a throwaway machine before. With ``uncleared`` such a machine does not
    clear pages as they are allocated, so that a case sees those that nobody cleared when they were mapped. ``words`` of
    the kernel command line are what such a machine is booted with; another one that was not skips the cases.
    """

    def __init__(
        self,
        name: str,
        *,
        sizes: Sizes = Sizes.EACH,
        around: Around = nullcontext,
        first: bool = False,
        uncleared: bool = False,
        words: str = "",
    ) -> None:
        self.name = name
        self.around = around
        self.first = first
        self.uncleared = uncleared
        self.words = words
        self._sizes = sizes
        self.cases: list[Case] = []

    def case(
        self,
        statement: str,
        source: str,
        *,
        pages: int = 0,
        nodes: int = 1,
        sizes: Sizes | None = None,
        since: str | None = None,
        until: str | None = None,
    ) -> Callable[[Act], Act]:
        """Make the decorated function a case, named after it.

        ``statement`` is what the kernel must do, ``source`` the document or function that says so; both stand in
        every failure. ``since`` and ``until`` are the kernel versions for which it holds.
        """

        def register(act: Act) -> Act:
            name = act.__name__.replace("_", "-")
            rule = Rule(name, statement, source, _version(since), _version(until))
            self.cases.append(Case(name, rule, act, pages, nodes, sizes or self._sizes))
            return act

        return register


def result_name(area: Area, case: Case, size: int | None) -> str:
    """Return the name of the result of ``case`` on pages of ``size`` bytes, None for a case that runs once."""
    return f"/{area.name}/{case.name}" if size is None else f"/{area.name}/{case.name}/{format_size(size)}"


def _version(text: str | None) -> KernelVersion | None:
    return KernelVersion.parse(text) if text else None
