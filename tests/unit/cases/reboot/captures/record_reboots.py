"""Record the captures of this directory anew: ``python tests/unit/cases/reboot/captures/record_reboots.py``.

Each is what a real kernel printed in a probe machine that was booted with the words of one reboot case; ``plain`` is
the same machine without any. The form is that of tests/unit/captures.
"""

import gzip
import json
import sys
from pathlib import Path

from hugepage_qa.cases.reboot.reboot_case import load_cases
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import describe
from hugepage_qa.qemu.packages import cache_directory, distribution_kernel
from hugepage_qa.qemu.probe_machine import Ending, Lab, ProbeMachine
from hugepage_qa.sizes import GIB


def main() -> None:
    """Boot the machine once for each case."""
    cache = cache_directory()
    lab = Lab(cache)
    image = distribution_kernel("x86_64", cache, report=print).image

    def boot(name: str, words: str) -> CapturedTree:
        machine = ProbeMachine("x86_64", "max", image, (2 * GIB, 2 * GIB), words)
        ended = lab.boot(machine)
        if ended.tree is None or ended.ending is not Ending.POWERED_OFF:
            sys.exit(f"{name}: {ended.ending.value}: {ended.reason}")
        text = json.dumps(dict(sorted(ended.tree.files.items())), indent=0)
        # no time stamp: the same capture gives the same file
        Path(__file__).with_name(f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return ended.tree

    facts = read_facts(boot("plain", ""))
    for case in load_cases(describe(facts), "", facts.meminfo["MemTotal"]):
        if case.words:
            boot(case.name.rpartition("/")[2], case.boot.words)


if __name__ == "__main__":
    main()
