"""All facts of a machine, and the flat view that predictions are compared with."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import read_facts, read_kernel_version
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree
from hugepage_qa.version import KernelVersion

MACHINE = {
    "proc/cmdline": "hugepages=3 kvm.hpage=1 odd=1\n",
    "proc/version": "Linux version 6.1.0-44-amd64 (builder) #1 SMP\n",
    "proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1 kB\nHugePages_Total: 3\nHugepagesize: 2048 kB\nCmaTotal: 4 kB\n",
    "proc/filesystems": "nodev\tsysfs\nnodev\thugetlbfs\n\text4\n",
    "proc/1/comm": "sh\n",
    "proc/40/comm": "kcompactd0\n",
    "proc/sys/vm/nr_hugepages": "3\n",
    "proc/sys/vm/min_free_kbytes": "1000\n",
    "sys/module/kvm/parameters/hpage": "1\n",
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 2048 kB\nNode 0 HugePages_Total: 3\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    "sys/kernel/mm/transparent_hugepage/hugetext_enabled": "2\n",
    "sys/kernel/mm/transparent_hugepage/khugepaged/defrag": "1\n",
    "sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled": "always inherit madvise [never]\n",
    "sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/nr_anon": "7\n",
    "dmesg": '<5>[    0.1] Unknown kernel command line parameters "odd=1", will be passed to user space.\n',
}


def test_observations() -> None:
    assert read_facts(CapturedTree(MACHINE)).observations() == {
        "filesystems/hugetlbfs": "registered",
        "hugepages-2048kB/nr_hugepages": 3,
        "kvm/hpage": 1,
        "meminfo/CmaTotal": 4096,
        "meminfo/HugePages_Total": 3,
        "meminfo/Hugepagesize": 2 << 20,
        "meminfo/MemFree": 1 << 10,
        "meminfo/MemTotal": 2 << 20,
        "node0/hugepages-2048kB/nr_hugepages": 3,
        "node0/meminfo/HugePages_Total": 3,
        "node0/meminfo/MemTotal": 2 << 20,
        "process/khugepaged": "absent",
        "transparent_hugepage/enabled": "always",
        "transparent_hugepage/hugepages-64kB/enabled": "never",
        "transparent_hugepage/hugetext_enabled": 2,
        "transparent_hugepage/khugepaged/defrag": 1,
        "vm/nr_hugepages": 3,
    }


def test_release_and_architecture() -> None:
    facts = read_facts(CapturedTree(MACHINE), machine="x86_64")
    assert facts.version == KernelVersion(6, 1, 0)
    assert facts.architecture == "x86_64"
    tree = CapturedTree({**MACHINE, "proc/sys/kernel/arch": "s390x\n", "proc/sys/kernel/osrelease": "7.2.1\n"})
    assert read_facts(tree, machine="x86_64").architecture == "s390x"
    assert read_facts(tree).version == read_kernel_version(tree) == KernelVersion(7, 2, 1)


def test_a_kernel_of_debian_names_its_version_in_the_banner() -> None:
    compiler = "(gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40)"
    banner = f"Linux version 6.1.0-50-amd64 (a@b) {compiler} #1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-02)\n"
    for release, version in (("6.1.0-50-amd64", KernelVersion(6, 1, 176)), ("6.1.9", KernelVersion(6, 1, 9))):
        tree = CapturedTree({**MACHINE, "proc/sys/kernel/osrelease": f"{release}\n", "proc/version": banner})
        assert read_facts(tree).version == read_kernel_version(tree) == version


def test_parameters() -> None:
    facts = read_facts(CapturedTree(MACHINE))
    assert [str(parameter) for parameter in facts.parameters] == ["hugepages=3", "kvm.hpage=1", "odd=1"]
    assert facts.unknown_parameters == ["odd=1"]


def test_nothing_captured() -> None:
    facts = read_facts(CapturedTree({}))
    assert facts.observations() == {}
    with pytest.raises(InputError, match=r"^/proc/sys/kernel/osrelease"):
        _ = facts.version


def test_process_and_file_system() -> None:
    tree = CapturedTree({"proc/9/comm": "khugepaged\n", "proc/filesystems": "nodev\tsysfs\n"})
    assert read_facts(tree).observations() == {"process/khugepaged": "running", "filesystems/hugetlbfs": "absent"}


def test_captures_are_whole(any_capture: CapturedTree) -> None:
    facts = read_facts(any_capture)
    assert facts.architecture in {"x86_64", "aarch64", "ppc64le", "s390x"}
    assert facts.version >= KernelVersion(6, 1)
    assert facts.command_line
    observations = facts.observations()
    assert json.loads(json.dumps(observations)) == observations
    assert observations["filesystems/hugetlbfs"] == ("registered" if facts.pools else "absent")


def test_default_pool_is_the_one_of_meminfo_and_sysctl(any_capture: CapturedTree) -> None:
    facts = read_facts(any_capture)
    observations = facts.observations()
    if "Hugepagesize" not in facts.meminfo:
        assert not {subject for subject in observations if "hugepages" in subject.lower() and "Total" in subject}
        return
    default = f"hugepages-{facts.meminfo['Hugepagesize'] // 1024}kB"
    assert observations[f"{default}/nr_hugepages"] == observations["meminfo/HugePages_Total"]
    assert observations[f"{default}/nr_hugepages"] == observations["vm/nr_hugepages"]
    assert observations["meminfo/Hugetlb"] == sum(pool.size * pool.files["nr_hugepages"] for pool in facts.pools)


def test_this_machine_can_be_read() -> None:
    facts = read_facts(DirectoryTree(Path("/")))
    assert facts.observations()["meminfo/MemTotal"] == facts.meminfo["MemTotal"]
    assert facts.cpu.count >= 1


@given(st.sampled_from(sorted(MACHINE)), st.text())
def test_one_broken_file_is_an_input_error_or_harmless(path: str, text: str) -> None:
    try:
        observations = read_facts(CapturedTree({**MACHINE, path: text})).observations()
    except InputError as error:
        assert str(error).startswith(f"/{path}, line ")
    else:
        assert all(isinstance(value, int | str) for value in observations.values())
