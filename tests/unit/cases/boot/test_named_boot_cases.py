"""Named cases: the files that ship, and files that are wrong."""

from pathlib import Path

import pytest

from hugepage_qa.cases.boot.boot_case import (
    BootCase,
    Target,
    load_group,
    parse_cases,
)
from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.nominal import nominal_machine


def target(architecture: str = "x86_64", cpu: str = "max") -> Target:
    machine = nominal_machine(KernelImage(Path("vmlinuz"), architecture, "6.1", None), cpu, (1 << 30,))
    return Target(architecture, cpu, machine.mmu, machine.features)


def all_cases(architecture: str, cpu: str) -> list[BootCase]:
    return [case for group in groups() for case in load_group(group, target(architecture, cpu))]


def test_x86_64_has_at_least_60_distinct_cases() -> None:
    assert len({(case.words, case.memory) for case in all_cases("x86_64", "max")}) >= 60


@pytest.mark.parametrize(
    ("architecture", "cpu"), [(board.architecture, cpu) for board in BOARDS.values() for cpu in board.cpus]
)
def test_names_are_unique_and_placeholders_filled(architecture: str, cpu: str) -> None:
    cases = all_cases(architecture, cpu)
    names = [case.name for case in cases]
    assert len(names) == len(set(names))
    assert not [case for case in cases if "{" in case.words]
    assert all(case.source for case in cases)


def test_bytes_become_pages_of_the_machine() -> None:
    text = "[{name: a, words: 'hugepagesz={default} hugepages={64M/default}', source: s, pools: {default: 64M}}]"
    (x86,) = parse_cases(text, "g", target())
    (power,) = parse_cases(text, "g", target("ppc64le", "power8"))
    assert (x86.words, dict(x86.facts)) == ("hugepagesz=2M hugepages=32", {"hugepages-2048kB/nr_hugepages": 32})
    assert (power.words, dict(power.facts)) == ("hugepagesz=16M hugepages=4", {"hugepages-16384kB/nr_hugepages": 4})


def test_a_case_for_a_size_that_is_not_there_is_left_out() -> None:
    assert parse_cases("[{name: a, words: 'hugepagesz={other}', source: s}]", "g", target()) == []


@pytest.mark.parametrize(
    "text",
    [
        "[{name: a, words: '', source: s, pools: {lagre: 1G}}]",
        "[{name: a, words: '', source: s, nodes: {x: {default: 1G}}}]",
        "[",
        "{}",
        "- 1",
        "[{name: a}]",
        "[{name: A!, words: '', source: s}]",
        "[{name: a, words: '', source: s, x: 1}]",
    ],
)
def test_a_wrong_file_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"cases g\.yaml") as caught:
        parse_cases(text, "g", target())
    assert "\n" not in str(caught.value)


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(InputError, match="group 'nosuch': expected one of"):
        load_group("nosuch", target())
