"""What real kernels showed that were booted with the words of each case: ``captures/<case>.json.gz``."""

import gzip
import json
import re
from functools import cache
from pathlib import Path

from hugepage_qa.cases.reboot.reboot_case import RebootCase, load_cases
from hugepage_qa.kernel.facts import Facts, read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import describe

CAPTURES = Path(__file__).parent / "captures"
POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
NODE_POOL = "sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"


@cache
def load(name: str) -> CapturedTree:
    """Return the capture of the case ``name``; cases without words are the plain machine."""
    path = CAPTURES / f"{name}.json.gz"
    with gzip.open(path if path.exists() else CAPTURES / "plain.json.gz", "rt", encoding="utf-8") as stream:
        return CapturedTree(json.load(stream))


@cache
def facts_of(name: str) -> Facts:
    return read_facts(load(name))


@cache
def all_cases() -> dict[str, RebootCase]:
    """Return the cases that the machine of the captures can run by their short name, as they are on it."""
    return cases_of(facts_of("plain"))


def cases_of(facts: Facts) -> dict[str, RebootCase]:
    """Return the cases that the machine of ``facts`` can run by their short name."""
    cases = load_cases(describe(facts), "", facts.meminfo["MemTotal"])
    return {case.name.rpartition("/")[2]: case for case in cases if not case.why_not}


def with_files(tree: CapturedTree, **files: str) -> CapturedTree:
    return CapturedTree({**tree.files, **files})


def nothing_set(_switch: str, _value: str) -> list[str]:
    """Find no file of the system that sets a switch of transparent huge pages."""
    return []


def with_pool(tree: CapturedTree, pages: int) -> CapturedTree:
    """Return the machine after its pool of 2 MiB pages was set to ``pages`` at run time."""
    files = dict(tree.files)
    # more on the first node than on the second: the kernel spreads as it likes
    shares = {0: pages - pages // 4, 1: pages // 4}
    _take_free_memory(files, "proc/meminfo", pages - int(files[f"{POOL}/nr_hugepages"]))
    for name in ("nr_hugepages", "free_hugepages", "nr_hugepages_mempolicy"):
        files[f"{POOL}/{name}"] = f"{pages}\n"
    for node, count in shares.items():
        taken = count - int(files[f"{NODE_POOL.format(node=node)}/nr_hugepages"])
        _take_free_memory(files, f"sys/devices/system/node/node{node}/meminfo", taken)
        for name in ("nr_hugepages", "free_hugepages"):
            files[f"{NODE_POOL.format(node=node)}/{name}"] = f"{count}\n"
    for name in ("nr_hugepages", "nr_hugepages_mempolicy"):
        files[f"proc/sys/vm/{name}"] = f"{pages}\n"
    large = int(files["sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"])
    text = files["proc/meminfo"]
    for name, value in (
        ("HugePages_Total", pages),
        ("HugePages_Free", pages),
        ("Hugetlb", pages * 2048 + large * 1048576),
    ):
        text = re.sub(rf"(?m)^({name}:\s+)\d+", rf"\g<1>{value}", text)
    files["proc/meminfo"] = text
    return CapturedTree(files)


def _take_free_memory(files: dict[str, str], path: str, pages: int) -> None:
    """Let ``pages`` of 2 MiB more come from the free memory that ``path`` shows."""
    files[path] = re.sub(
        r"(?m)(MemFree:\s+)(\d+)", lambda match: f"{match[1]}{int(match[2]) - pages * 2048}", files[path]
    )
