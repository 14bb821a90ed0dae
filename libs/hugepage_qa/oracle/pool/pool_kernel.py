"""What the pools of huge pages do differently from one kernel version to the next.

Changes of intended behaviour are properties here. Where kernels are wrong, a Quirk says what they do instead
(``known``); the model follows those that it is asked to follow, and notes when one made a difference.
"""

from collections.abc import Iterable

from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.version import KernelVersion


class PoolKernel:
    """The kernel whose pools are modelled."""

    def __init__(self, version: KernelVersion, follow: Iterable[Quirk] = ()) -> None:
        self.version = version
        self.follow = frozenset(follow)
        #: quirks that made a difference so far
        self.followed: set[Quirk] = set()
        #: quirks that may have shown in this step and did not, as far as the model knows
        self.open: set[Quirk] = set()
        self._supposed: set[Quirk] = set()

    def follows(self, quirk: Quirk) -> bool:
        """Tell whether to deviate by ``quirk``; asked only where that makes a difference, which is noted."""
        if quirk in self.follow:
            self.followed.add(quirk)
            return True
        return False

    def may_follow(self, quirk: Quirk) -> bool:
        """Tell whether to deviate by ``quirk`` where the model cannot know if it shows: only when that is supposed."""
        if quirk in self._supposed:
            return self.follows(quirk)
        self.open |= {quirk} & self.follow
        return False

    def suppose(self, quirks: Iterable[Quirk]) -> None:
        """From here on take it that ``quirks`` show where they may, and no others."""
        self._supposed = set(quirks)
        self.open = set()

    def mend(self, quirk: Quirk) -> None:
        """Deviate by ``quirk`` no longer: this kernel has its fix."""
        self.follow -= {quirk}

    def _since(self, major: int, minor: int) -> bool:
        return self.version >= KernelVersion(major, minor)

    @property
    def can_discard(self) -> bool:
        """madvise(MADV_DONTNEED) works on huge pages: 90e7e7f5ef3f (Linux 5.18)."""
        return self._since(5, 18)

    @property
    def can_move(self) -> bool:
        """mremap() moves mappings of huge pages: 550a7d60bd5e (Linux 5.16); none has ever let them grow."""
        return self._since(5, 16)

    @property
    def can_demote(self) -> bool:
        """Pools have the files demote and demote_size: 79dfc695525f (Linux 5.16)."""
        return self._since(5, 16)

    @property
    def can_overcommit_gigantic(self) -> bool:
        """Surplus pages may be gigantic: eb02f14c4a2b (Linux 6.19), nr_overcommit_hugepages_store()."""
        return self._since(6, 19)

    @property
    def copies_tables_lazily(self) -> bool:
        """fork() copies no page tables that faults can fill: bcd51a3c679d (Linux 6.0), vma_needs_copy()."""
        return self._since(6, 0)

    @property
    def prepares_anonymous_first(self) -> bool:
        """A fault makes the mapping anonymous before it asks for a page, not after: vmf_anon_prepare() (Linux 6.10)."""
        return self._since(6, 10)

    @property
    def unmapping_restores_reservation(self) -> bool:
        """A page that its owner unmaps is reserved for it again: df7a6d1f6405 (Linux 6.9)."""
        return self._since(6, 9)

    @property
    def demotes_into_free_list(self) -> bool:
        """Pages made by demotion are free; before c0f398c3b2cf (Linux 6.12) each took the place of a surplus page."""
        return self._since(6, 12)

    @property
    def shrinks_below_surplus(self) -> bool:
        """Surplus pages in use do not keep free persistent ones in the pool: set_max_huge_pages() (Linux 6.15)."""
        return self._since(6, 15)
