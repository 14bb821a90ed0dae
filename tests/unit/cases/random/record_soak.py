"""Record one race of each of some seeds on a throwaway machine, for the test that replays and falsifies them.

python -m tests.unit.cases.random.record_soak. The kernel is the newest of a suite that knows all that can be drawn.
"""

import gzip
import json
import tempfile
from pathlib import Path

from tests.unit.cases.record_areas import RECORDS
from tests.unit.cases.transcript import Event, Recorder

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.random.soak import SOAK, soak_case
from hugepage_qa.cases.result import Verdict
from hugepage_qa.cases.throwaway_run import NODES
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.agent_machine import start_agent_machine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.virtual_machine import VirtualMachine

RECORD = RECORDS / "soak.json.gz"
SUITE = "trixie-backports"
SEEDS = range(1, 9)


def main() -> None:
    """Record a race of each seed."""
    records: dict[str, list[Event]] = {}
    for seed in SEEDS:
        kernel = find_kernel("x86_64", Settings(suite=SUITE))
        machine = VirtualMachine(kernel, find_board("x86_64").default_cpu, NODES, cpus=2)
        with tempfile.TemporaryDirectory() as scratch, start_agent_machine(machine, cache_directory()) as running:
            running.await_agent()
            recorder = Recorder(ThrowawayMachine(running, Path(scratch)))
            result = judge(SOAK, soak_case(seed, 0), Host(recorder), None)
        if result is None or result.verdict is not Verdict.PASS:
            raise SystemExit(str(result))
        records[str(seed)] = recorder.events
    RECORD.write_bytes(gzip.compress(json.dumps(records, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
