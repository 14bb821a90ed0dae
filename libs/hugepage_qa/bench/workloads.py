"""The table of workloads, in the order in which they are measured."""

from collections.abc import Mapping, Sequence

from hugepage_qa.bench.fragmented_memory import FragmentedFaults, GuestStart
from hugepage_qa.bench.guest_database import GuestDatabase
from hugepage_qa.bench.guest_network import GuestNetwork
from hugepage_qa.bench.mariadb_oltp import MariadbOltp
from hugepage_qa.bench.memory_at_once import SharedMemory, Stutter, TouchAtOnce
from hugepage_qa.bench.page_access import PageAccess
from hugepage_qa.bench.page_migration import PageMigration
from hugepage_qa.bench.pgbench import Pgbench
from hugepage_qa.bench.source_build import GuestBuild, SourceBuild
from hugepage_qa.bench.swapped_memory import SwapAtOnce, SwapFromDisk
from hugepage_qa.bench.sysbench_memory import GuestMemory, GuestMemoryPair, SysbenchMemory
from hugepage_qa.bench.text_access import TextAccess
from hugepage_qa.bench.workload import Workload
from hugepage_qa.errors import InputError

_ALL: tuple[Workload, ...] = (
    PageAccess(),
    SysbenchMemory(),
    Pgbench(),
    SourceBuild(),
    TextAccess(),
    TouchAtOnce(),
    SharedMemory(),
    SwapAtOnce(),
    SwapFromDisk(),
    Stutter(),
    FragmentedFaults(),
    PageMigration(),
    MariadbOltp(),
    GuestStart(),
    GuestMemory(),
    GuestMemoryPair(),
    GuestNetwork(),
    GuestBuild(),
    GuestDatabase(),
)

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}

#: measured where none is named: minutes, with programs that every distribution has
USUAL = ("page-access", "sysbench-memory", "pgbench")

PROFILES = ("quick", "reference")


def choose_workloads(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads called ``names``, without names the usual ones. Raises InputError for an unknown one."""
    for name in names:
        if name not in WORKLOADS:
            raise InputError(f"--workload {name}: expected one of {', '.join(WORKLOADS)}")
    return tuple(workload for name, workload in WORKLOADS.items() if name in (names or USUAL))
