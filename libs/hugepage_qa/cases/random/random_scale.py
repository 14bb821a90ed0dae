"""How large random programs are."""

from dataclasses import dataclass

#: the process that a program starts with
FIRST_PROCESS = "a"


@dataclass(frozen=True)
class Scale:
    """How large programs are: pages of ``size`` bytes in the pool and in a file or mapping, and what there may be."""

    size: int
    pool: int
    pages: int
    steps: int = 40
    processes: int = 4
    mounts: int = 2
    groups: int = 2
