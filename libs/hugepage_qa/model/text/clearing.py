"""What is done about huge pages of text, and which of them are there after it."""

from enum import Enum


class Clearing(Enum):
    """A way that is said to clear huge pages of text."""

    SWITCH_OFF = "0 written to hugetext_enabled"
    DROP_CACHES = "3 written to drop_caches"
    EVICT_FILE = "the pages of the file evicted (vmtouch -e)"
    SPLIT = "1 written to split_huge_pages"
    OPEN_FOR_WRITE = "the file opened for writing"


def stays_huge(clearing: Clearing, *, mapped: bool) -> bool:
    """Tell whether huge page cache is still huge afterwards; ``mapped`` where a process maps it.

    Page cache that is mapped is not evicted, and switching off touches none.
    """
    match clearing:
        case Clearing.SWITCH_OFF:
            return True
        case Clearing.DROP_CACHES | Clearing.EVICT_FILE:
            return mapped
        case Clearing.SPLIT | Clearing.OPEN_FOR_WRITE:
            return False
