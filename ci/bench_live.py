"""How fast live cases run on a throwaway machine, beside the same cases on this machine: ratios, taken in one run.

Prints seconds to boot, round trips and batched requests a second, cases a minute, and what a case costs that does
nothing. As root the same cases run on this machine, too, which is put back.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.case import Area
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.live import Live
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.agent_machine import start_agent_machine
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, MIB

AREAS = ("pool/pool", "memory/memfd", "reservation/truncate", "thp/collapse")
SIZE = 2 * MIB
REQUESTS = 300
EMPTY_CASES = 10
EMPTY = Area("empty")


@EMPTY.case("a case that does nothing", "mmap(2)")
def nothing(live: Live) -> None:
    """Cost what every case costs."""


def main() -> int:
    """Run all and print the figures."""
    kernel = find_kernel("x86_64", Settings(say=print))
    machine = VirtualMachine(kernel, "max", (2 * GIB, 2 * GIB), cpus=2)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, start_agent_machine(machine, cache_directory()) as running:
        running.await_agent()
        print(f"kernel {kernel.release}: the agent answers after {time.monotonic() - began:.1f} s")
        single = seconds(lambda: [running.channel.ask("r", "/proc/meminfo") for _ in range(REQUESTS)])
        batched = seconds(lambda: running.channel.ask_many([("r", ("/proc/meminfo",))] * REQUESTS))
        print(f"round trips a second: {REQUESTS / single:.0f}; requests sent at once: {REQUESTS / batched:.0f}")
        throwaway = run_all(Host(ThrowawayMachine(running, Path(scratch))), "throwaway machine")
    if os.geteuid() != 0:
        print("this machine: left out, it needs root")
        return 0
    try:
        with this_machine() as host:
            print(f"throwaway machine over this machine: {throwaway / run_all(host, 'this machine'):.2f}")
    except InputError as error:
        print(f"this machine: left out, {error}")
    return 0


def run_all(host: Host, name: str) -> float:
    """Run the cases and return their seconds."""
    areas = list(live_areas(AREAS))
    empty = seconds(lambda: [judge(EMPTY, EMPTY.cases[0], host, SIZE) for _ in range(EMPTY_CASES)]) / EMPTY_CASES
    count = 0
    began = time.monotonic()
    for area in areas:
        for case in area.cases:
            count += judge(area, case, host, SIZE) is not None
    took = time.monotonic() - began
    rate = 60 * count / took
    print(f"{name}: {count} cases in {took:.1f} s, {rate:.0f} a minute; an empty one {1000 * empty:.0f} ms")
    return took


@contextmanager
def this_machine() -> Iterator[Host]:
    """Yield this machine, which is put back."""
    with protected_machine("ci/bench_live.py") as protection, real_machine(protection.scratch) as machine:
        yield Host(machine)


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
