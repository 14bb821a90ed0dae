"""The table of workloads, in the order in which they are measured."""

from collections.abc import Mapping, Sequence

from hugepage_qa.bench.page_access import PageAccess
from hugepage_qa.bench.pgbench import Pgbench
from hugepage_qa.bench.sysbench_memory import SysbenchMemory
from hugepage_qa.bench.workload import Workload
from hugepage_qa.errors import InputError

_ALL: tuple[Workload, ...] = (PageAccess(), SysbenchMemory(), Pgbench())

WORKLOADS: Mapping[str, Workload] = {workload.name: workload for workload in _ALL}

PROFILES = ("quick", "reference")


def choose_workloads(names: Sequence[str]) -> tuple[Workload, ...]:
    """Return the workloads that are called ``names``, all without names. Raises InputError for an unknown one."""
    for name in names:
        if name not in WORKLOADS:
            raise InputError(f"--workload {name}: expected one of {', '.join(WORKLOADS)}")
    return tuple(workload for name, workload in WORKLOADS.items() if not names or name in names)
