"""Cases on the running machine: what they check, where the rule comes from, and what they need."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from hugepage_qa.cases.live import Live
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.version import KernelVersion

Act = Callable[[Live], None]


class Sizes(enum.Enum):
    """For which page sizes of the machine a case runs."""

    EACH = "each page size"
    #: sizes that the buddy allocator has
    BUDDY = "page sizes up to the largest block of the buddy allocator"
    #: sizes beyond it
    GIGANTIC = "page sizes beyond the largest block of the buddy allocator"
    #: the size that /proc/meminfo counts
    DEFAULT = "the default page size"
    #: not about hugetlb: the machine need not have a pool
    ONCE = "once for the machine"

    def include(self, live: Live) -> bool:
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

    ``sizes`` are those of every case that names none itself.
    """

    def __init__(self, name: str, *, sizes: Sizes = Sizes.EACH) -> None:
        self.name = name
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


def _version(text: str | None) -> KernelVersion | None:
    return KernelVersion.parse(text) if text else None
