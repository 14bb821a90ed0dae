"""The identity of the machine: what a real one shows, and that each hard fact makes it another machine."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import CAPTURES, load_capture

from hugepage_gate.environment import SOFT_KEYS, env_id, hard_keys
from hugepage_qa.bench.measured_environment import NOT_KNOWN, read_environment, read_subject
from hugepage_qa.bench.measurement import SOFT
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree

GROUPS = {"cpu", "memory", "pages", "virtualization", "thp", "nr_hugepages", "mitigations", "frequency"}


def captures() -> list[str]:
    return sorted(path.name.removesuffix(".json.gz") for path in CAPTURES.glob("*-plain.json.gz"))


@pytest.mark.parametrize("name", captures())
def test_every_group_of_facts_is_there(name: str) -> None:
    facts = read_environment(load_capture(name))
    assert {key.partition(".")[0] for key in facts if "." in key} >= GROUPS - {"thp", "nr_hugepages"}
    assert facts["cpu_model"] != ""
    assert read_subject(load_capture(name))["kernel"] != NOT_KNOWN


def test_the_gate_knows_our_soft_facts() -> None:
    facts = read_environment(DirectoryTree(Path("/")))
    assert SOFT <= SOFT_KEYS
    assert facts.keys() - hard_keys(facts).keys() == SOFT


def replaced(path: str, old: str, new: str) -> Callable[[dict[str, str]], None]:
    def change(files: dict[str, str]) -> None:
        assert old in files.get(path, ""), path
        files[path] = files[path].replace(old, new)

    return change


def added(path: str, text: str) -> Callable[[dict[str, str]], None]:
    return lambda files: files.__setitem__(path, text)


MACHINE = {
    "proc/cpuinfo": "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Xeon\nstepping\t: 2\n"
    "microcode\t: 0x1\nflags\t\t: fpu pdpe1gb\n",
    "proc/self/smaps": "00400000-00452000 r-xp 00000000 08:02 173521 /bin/x\nKernelPageSize:        4 kB\n",
    "proc/zoneinfo": "Node 0, zone   Normal\n  pages free     10\n        spanned  262144\n        present  262144\n"
    "        managed  250000\n  start_pfn:           1\n",
    "proc/meminfo": "MemFree: 10 kB\n",
    "proc/cmdline": "quiet mitigations=auto",
    "proc/uptime": "5.0 4.0",
    "proc/sys/kernel/osrelease": "6.12.1\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/defrag": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/khugepaged/defrag": "1",
    "sys/kernel/mm/transparent_hugepage/khugepaged/pages_collapsed": "7",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "4",
    "sys/devices/system/cpu/smt/active": "1",
    "sys/devices/system/cpu/vulnerabilities/meltdown": "Mitigation: PTI",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
    "sys/devices/system/cpu/cpu0/topology/core_id": "0",
}


@pytest.mark.parametrize(
    "change",
    [
        replaced("proc/cpuinfo", "Xeon", "Epyc"),
        replaced("proc/cpuinfo", "stepping\t: 2", "stepping\t: 3"),
        replaced("proc/cpuinfo", "0x1", "0x2"),
        replaced("proc/cpuinfo", "fpu", "fpu hypervisor"),
        replaced("proc/zoneinfo", "present  262144", "present  524288"),
        replaced("proc/cmdline", "mitigations=auto", "mitigations=off"),
        replaced("proc/self/smaps", " 4 kB", "64 kB"),
        replaced("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise]", "[always] madvise"),
        replaced("sys/kernel/mm/transparent_hugepage/defrag", "always [madvise]", "[always] madvise"),
        replaced("sys/kernel/mm/transparent_hugepage/khugepaged/defrag", "1", "0"),
        replaced("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "4", "5"),
        replaced("sys/devices/system/cpu/smt/active", "1", "0"),
        replaced("sys/devices/system/cpu/vulnerabilities/meltdown", "Mitigation: PTI", "Vulnerable"),
        replaced("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance", "powersave"),
        added("sys/devices/system/cpu/intel_pstate/no_turbo", "1"),
        added("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0"),
        added("sys/devices/system/cpu/cpu1/topology/core_id", "1"),
    ],
)
def test_a_hard_fact_makes_another_machine(change: Callable[[dict[str, str]], None]) -> None:
    files = dict(MACHINE)
    change(files)
    assert identity(files) != identity(MACHINE)


@pytest.mark.parametrize(
    "change",
    [
        replaced("proc/uptime", "5.0", "6.0"),
        replaced("proc/meminfo", "10", "20"),
        replaced("proc/cmdline", "quiet", "verbose"),
        # a kernel takes more or less of the memory for itself
        replaced("proc/zoneinfo", "managed  250000", "managed  249000"),
        replaced("sys/kernel/mm/transparent_hugepage/khugepaged/pages_collapsed", "7", "8"),
        added("sys/devices/system/cpu/vulnerabilities/one_more", "Mitigation: on"),
    ],
)
def test_what_comes_and_goes_does_not(change: Callable[[dict[str, str]], None]) -> None:
    files = dict(MACHINE)
    change(files)
    assert identity(files) == identity(MACHINE)


def identity(files: dict[str, str]) -> str:
    return env_id(read_environment(CapturedTree(files)))
