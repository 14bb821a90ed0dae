"""How much of a CPU processes and threads have had: one that works is told from one that waits."""

from hugepage_qa.cases.live import Live
from hugepage_qa.process.actor import Actor
from hugepage_qa.process.process_table import split_stat, state_and_cpu_seconds


def cpu_seconds(live: Live, task: str) -> float:
    """Return the CPU time of ``task``, a process (``23``) or a thread (``23/task/24``); 0 of one that is gone."""
    return state_and_cpu_seconds(split_stat(live.host.read(f"proc/{task}/stat") or ""))[1]


def thread_seconds(live: Live, actor: Actor) -> dict[str, float]:
    """Return the CPU time of each thread that ``actor`` has started; it answers requests itself meanwhile."""
    threads = f"{actor.pid}/task"
    started = [thread for thread in live.host.names(f"proc/{threads}") if thread != str(actor.pid)]
    return {thread: cpu_seconds(live, f"{threads}/{thread}") for thread in started}
