"""Record the captures of this directory anew: ``python tests/unit/cases/reboot/captures/record_reboots.py``.

Each is what a real kernel printed in a probe machine that was booted with the words of one reboot case; ``plain`` is
the same machine without any. The form is that of tests/unit/captures.
"""

import gzip
import json
from pathlib import Path

from hugepage_qa.cases.reboot.reboot_case import load_cases
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import describe
from hugepage_qa.qemu.packages import cache_directory, distribution_kernel
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB


def main() -> None:
    """Boot the machine once for each case."""
    cache = cache_directory()
    lab = Lab(cache)
    kernel = distribution_kernel("x86_64", cache, report=print)

    def boot(name: str, words: str) -> CapturedTree:
        tree = lab.boot(VirtualMachine(kernel, "max", (2 * GIB, 2 * GIB), words)).tree
        text = json.dumps(dict(sorted(tree.files.items())), indent=0)
        # no time stamp: the same capture gives the same file
        Path(__file__).with_name(f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return tree

    facts = read_facts(boot("plain", ""))
    for case in load_cases(describe(facts), "", facts.meminfo["MemTotal"]):
        if case.words:
            boot(case.name.rpartition("/")[2], case.boot.words)


if __name__ == "__main__":
    main()
