"""hugetext= through the boot loader: a machine with its files is rebooted and judged, one without them is not."""

import pytest
from tests.unit.cases.reboot.conftest import all_cases, cases_of, load, nothing_set, with_files

from hugepage_qa.cases.reboot.reboot_judge import judge_case
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree

THP = "sys/kernel/mm/transparent_hugepage"
MODES = {"hugetext-off": 0, "hugetext-files": 1, "hugetext-both": 3}


def machine(name: str = "", mode: int = 0, *, pads: bool = True, thp: str = "never") -> CapturedTree:
    """Return a machine with hugetext that was booted with the words of the case ``name``."""
    policies = " ".join(f"[{word}]" if word == thp else word for word in ("always", "madvise", "never"))
    files = {f"{THP}/hugetext_enabled": f"{mode}\n", f"{THP}/enabled": f"{policies}\n"}
    if pads:
        files[f"{THP}/hugetext_pad_threshold"] = "0\n"
    if name:
        words = cases_of(read_facts(machine()))[name].boot.words
        files["proc/cmdline"] = f"{load('plain').files['proc/cmdline'].strip()} {words}\n"
    return with_files(load("plain"), **files)


def judge(name: str, tree: CapturedTree) -> Verdict:
    cases = cases_of(read_facts(machine()))
    return judge_case(cases[name], read_facts(tree), None, None, nothing_set, "grubby")[0]


def policy_of(name: str) -> str:
    return "never" if name == "hugetext-both" else "always"


def test_which_machines_are_rebooted_for_it() -> None:
    assert not MODES.keys() & all_cases().keys()
    assert MODES.keys() <= cases_of(read_facts(machine())).keys()
    assert "hugetext-both" not in cases_of(read_facts(machine(pads=False)))


@pytest.mark.parametrize("name", MODES)
def test_a_kernel_that_follows_it_passes(name: str) -> None:
    assert judge(name, machine(name, MODES[name], thp=policy_of(name))) is Verdict.PASS


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("mode", range(4))
def test_every_other_mode_fails(name: str, mode: int) -> None:
    if mode != MODES[name]:
        assert judge(name, machine(name, mode, thp=policy_of(name))) is Verdict.FAIL


def test_hugetext_that_changes_the_policy_of_all_fails() -> None:
    assert judge("hugetext-both", machine("hugetext-both", 3, thp="always")) is Verdict.FAIL


def test_words_that_did_not_arrive_fail() -> None:
    assert judge("hugetext-files", machine(mode=1)) is Verdict.FAIL
