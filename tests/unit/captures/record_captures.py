"""Record the captured trees of this directory anew: ``python tests/unit/captures/record_captures.py [NAME-PART]``.

Each is what a real kernel printed in a probe machine: gzip'ed JSON, path without leading slash to text. "dmesg" is the
kernel log with raw levels.
"""

import gzip
import json
import sys
from pathlib import Path

from hugepage_qa.qemu.packages import cache_directory, distribution_kernel
from hugepage_qa.qemu.probe_machine import Lab
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import parse_memory

BACKPORTS = "trixie-backports"
CMA_ONLY = "hugetlb_cma=2G hugetlb_cma_only=1 hugepagesz=1G hugepages=3"

# architecture, CPU, suite (None: the machine's own), memory of the nodes, short name, command line
MACHINES = (
    ("x86_64", "max", None, "2G,2G", "nodes", "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"),
    ("x86_64", "max", None, "2G,0", "memoryless", "hugepages=0:8,1:8 transparent_hugepage=never"),
    ("x86_64", "max", None, "2G", "bad-words", 'hugepages=abc hugepagesz=3M hugepages=5 foo="a b\\c" thp=x'),
    ("x86_64", "max", None, "1G", "over-ask", "default_hugepagesz=1G hugepages=3"),
    ("x86_64", "qemu64", None, "2G", "plain", "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=16"),
    ("aarch64", "max", None, "2G,2G", "nodes", "hugepagesz=1G hugepages=1 hugepagesz=64K hugepages=32 hugepagesz=32M"),
    ("ppc64le", "power9", None, "2G", "plain", "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=16"),
    ("ppc64le", "power8", None, "2G", "plain", "hugepagesz=16M hugepages=8"),
    ("ppc64le", "power9", None, "2G,2G", "nodes", "hugepages=64"),
    ("s390x", "max", None, "2G", "plain", "hugepagesz=1M hugepages=8 transparent_hugepage=madvise"),
    ("x86_64", "max", "sid", "2G,2G", "nodes", "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"),
    ("x86_64", "max", "sid", "2G", "cma", "hugetlb_cma=1G hugetlb_free_vmemmap=on hugepages=64 thp_anon=64K:always"),
    ("aarch64", "max", "sid", "2G", "plain", "hugepages=16 transparent_hugepage=madvise"),
    ("ppc64le", "power9", "sid", "2G", "plain", "hugepages=16"),
    ("s390x", "max", "sid", "2G", "plain", "hugepages=16"),
    ("x86_64", "max", BACKPORTS, "2G,2G", "nodes", "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64"),
    ("x86_64", "max", BACKPORTS, "8G", "cma-only", f"{CMA_ONLY} thp_anon=64K:always transparent_hugepage=never"),
)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Boot every machine whose file name holds the argument and write its file."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    cache = cache_directory()
    lab = Lab(cache, report=_say)
    for architecture, cpu, suite, memory, short, words in MACHINES:
        kernel = distribution_kernel(architecture, cache, suite=suite, report=_say)
        version = kernel.version
        path = Path(__file__).with_name(
            f"{architecture}-{cpu}-{version.major}.{version.minor}-{short}.json.gz",
        )
        if wanted not in path.name:
            continue
        boot = lab.boot(VirtualMachine(kernel, cpu, parse_memory(memory), words))
        text = json.dumps(dict(sorted(boot.tree.files.items())), indent=0)
        # no time stamp: the same capture gives the same file
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        _say(f"{path.name}: {len(boot.tree.files)} files, {boot.seconds:.1f} s")


if __name__ == "__main__":
    main()
