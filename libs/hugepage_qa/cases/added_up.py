"""Counters of the machine, of its nodes and of its zones, of which each processor keeps a part for itself."""

from hugepage_qa.cases.live import Live


def add_up_counters(live: Live) -> None:
    """Have what each processor has counted for itself added up now, and not within the next second.

    Source: Documentation/admin-guide/sysctl/vm.rst stat_refresh; mm/vmstat.c vmstat_refresh().
    """
    live.host.write("proc/sys/vm/stat_refresh", "1")
