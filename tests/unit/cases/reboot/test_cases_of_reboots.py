"""The cases as they are on different machines: words, amounts, and why a machine cannot run one."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.cases.reboot.conftest import all_cases

from hugepage_qa.cases.reboot.reboot_case import Ask, load_cases, parse_reboot_cases
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.nominal import nominal_machine
from hugepage_qa.sizes import GIB


def kernel(architecture: str) -> KernelImage:
    return KernelImage(Path("vmlinuz"), architecture, "6.12", None)


TWO_NODES = (2 * GIB, 2 * GIB)
#: of a kernel without hugetext
HUGETEXT = {
    "hugetext-off": "the kernel has no hugetext",
    "hugetext-files": "the kernel has no hugetext",
    "hugetext-both": "the kernel has no hugetext_pad_threshold",
}


def reasons(architecture: str, cpu: str, memory: tuple[int, ...]) -> dict[str, str]:
    machine = nominal_machine(kernel(architecture), cpu, memory)
    cases = load_cases(machine, "", sum(memory))
    return {case.name.rpartition("/")[2]: case.why_not for case in cases if case.why_not}


def test_words_of_the_machine_of_the_captures() -> None:
    cases = all_cases()
    assert {name: case.boot.words for name, case in cases.items()} == {
        "default-size": "hugepages=122",
        "two-sizes": "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=122",
        "node-form": "hugepagesz=2M hugepages=0:61,1:122",
        "default-size-is-large": "default_hugepagesz=1G",
        "thp-always": "transparent_hugepage=always",
        "thp-madvise": "transparent_hugepage=madvise",
        "thp-never": "transparent_hugepage=never",
        "sysctl": "",
        "sysctl-below-parameter": "hugepages=245",
        "sysctl-above-parameter": "hugepages=122",
        "boot-against-run-time": "hugepages=1179",
    }
    assert {name: case.persisted for name, case in cases.items() if case.persisted} == {
        "sysctl": 122,
        "sysctl-below-parameter": 122,
        "sysctl-above-parameter": 245,
    }
    assert cases["boot-against-run-time"].at_run_time == Ask(1179, 2 << 20)
    assert cases["two-sizes"].words == ("hugepagesz=1G", "hugepages=1", "hugepagesz=2M", "hugepages=122")
    assert cases["sysctl"].words == ()


def test_every_machine_with_two_nodes_and_both_sizes_can_run_all() -> None:
    assert reasons("x86_64", "max", TWO_NODES) == HUGETEXT
    assert reasons("aarch64", "max", TWO_NODES) == HUGETEXT


@pytest.mark.parametrize(
    ("architecture", "cpu", "memory", "expected"),
    [
        ("x86_64", "max", (4 * GIB,), {"node-form": "no memory on node 1, only on 0"}),
        ("x86_64", "max", (4 * GIB, 0), {"node-form": "no memory on node 1, only on 0"}),
        ("x86_64", "max", (GIB, GIB), {"two-sizes": "4G of memory are needed, there are 2147483648 bytes"}),
        (
            "x86_64",
            "qemu64",
            TWO_NODES,
            dict.fromkeys(("two-sizes", "default-size-is-large"), "the machine has no large page size"),
        ),
        ("s390x", "max", (4 * GIB,), dict.fromkeys([*all_cases(), *HUGETEXT], "the CPU has no huge pages")),
    ],
)
def test_what_keeps_a_machine_from_a_case(
    architecture: str, cpu: str, memory: tuple[int, ...], expected: dict[str, str]
) -> None:
    assert reasons(architecture, cpu, memory) == HUGETEXT | expected


def test_memory_for_less_than_a_page() -> None:
    machine = nominal_machine(kernel("ppc64le"), "power8", (128 << 20,))
    cases = {case.name: case.why_not for case in load_cases(machine, "", 128 << 20)}
    assert cases["/reboot/default-size"] == "the memory is too small for one page of each size"


def test_other_words_leave_the_judging_to_the_model() -> None:
    machine = nominal_machine(kernel("x86_64"), "max", TWO_NODES)
    alone = load_cases(machine, "root=/dev/sda1 quiet", 4 * GIB)
    after_others = load_cases(machine, "root=/dev/sda1 hugepagesz=1G hugepages=1", 4 * GIB)
    assert any(case.boot.facts for case in alone)
    assert [replace(case.boot, facts={}) for case in alone] == [case.boot for case in after_others]


@pytest.mark.parametrize(
    "text",
    [
        "[{name: a, words: '', source: s, persisted: 5}]",
        "[{name: a, words: '', source: s, fragmented: true}]",
        "[{name: a, words: '{1/0/default}', source: s}]",
        "[{name: a, words: '', source: s, persisted: much}]",
        "[{name: a, words: '', source: s, interface: sound}]",
        "[{name: a}]",
    ],
)
def test_a_wrong_file(text: str) -> None:
    machine = nominal_machine(kernel("x86_64"), "max", TWO_NODES)
    with pytest.raises(InputError):
        parse_reboot_cases(text, machine, "", 4 * GIB)
