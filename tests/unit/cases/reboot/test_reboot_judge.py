"""Judging a boot: what a real kernel showed passes, and one falsified fact of it fails."""

import re
from pathlib import Path

import pytest
from tests.unit.cases.reboot.conftest import (
    NODE_POOL,
    POOL,
    all_cases,
    facts_of,
    load,
    nothing_set,
    with_files,
    with_pool,
)

from hugepage_qa.cases.reboot.reboot_judge import (
    FindSettings,
    compare_machines,
    judge_baseline,
    judge_case,
    stable_observations,
)
from hugepage_qa.cases.reboot.run_time_settings import OWN_FILE, Persisted, after_sysctl
from hugepage_qa.cases.result import Verdict
from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.oracle.prediction import Prediction
from hugepage_qa.sizes import GIB

THP = "sys/kernel/mm/transparent_hugepage/enabled"
LARGE = "sys/kernel/mm/hugepages/hugepages-1048576kB"


def persisted(name: str) -> Persisted | None:
    pages = all_cases()[name].persisted
    return None if pages is None else Persisted(pages, OWN_FILE)


def machine_of(name: str) -> CapturedTree:
    """Return what the machine shows when the case judges it: after sysctl.d."""
    pages = all_cases()[name].persisted
    return load(name) if pages is None else with_pool(load(name), pages)


def judge(name: str, tree: CapturedTree) -> tuple[Verdict, str]:
    return judge_case(all_cases()[name], read_facts(tree), None, persisted(name), nothing_set, "grubby")


@pytest.mark.parametrize("name", all_cases())
def test_what_a_real_kernel_shows_passes(name: str) -> None:
    assert judge(name, machine_of(name)) == (Verdict.PASS, "")


FALSIFIED = [
    ("default-size", f"{POOL}/nr_hugepages", "121\n"),
    ("default-size", f"{POOL}/free_hugepages", "121\n"),
    ("default-size", NODE_POOL.format(node=1) + "/nr_hugepages", "60\n"),
    ("default-size", "proc/sys/vm/nr_hugepages", "0\n"),
    ("two-sizes", f"{LARGE}/nr_hugepages", "0\n"),
    ("two-sizes", f"{POOL}/nr_hugepages", "123\n"),
    ("node-form", NODE_POOL.format(node=0) + "/nr_hugepages", "62\n"),
    ("node-form", NODE_POOL.format(node=1) + "/free_hugepages", "121\n"),
    ("default-size-is-large", f"{POOL}/nr_hugepages", "1\n"),
    ("default-size-is-large", f"{LARGE}/nr_hugepages", "1\n"),
    ("thp-always", THP, "always [madvise] never\n"),
    ("thp-madvise", THP, "[always] madvise never\n"),
    ("thp-never", THP, "always [madvise] never\n"),
    ("sysctl", f"{POOL}/nr_hugepages", "0\n"),
    ("sysctl", NODE_POOL.format(node=1) + "/nr_hugepages", "0\n"),
    ("sysctl-below-parameter", f"{POOL}/nr_hugepages", "245\n"),
    ("sysctl-below-parameter", "proc/sys/vm/nr_hugepages", "245\n"),
    ("sysctl-above-parameter", f"{POOL}/nr_hugepages", "122\n"),
    ("sysctl-above-parameter", f"{POOL}/free_hugepages", "244\n"),
    ("boot-against-run-time", f"{POOL}/nr_hugepages", "1178\n"),
    ("boot-against-run-time", f"{POOL}/nr_hugepages", "1180\n"),
]


def test_every_case_is_falsified() -> None:
    assert {name for name, _, _ in FALSIFIED} == set(all_cases())


@pytest.mark.parametrize(("name", "path", "text"), FALSIFIED)
def test_a_falsified_fact_fails(name: str, path: str, text: str) -> None:
    verdict, reason = judge(name, with_files(machine_of(name), **{path: text}))
    assert verdict is Verdict.FAIL
    assert "expected" in reason and "found" in reason and "rule" in reason


@pytest.mark.parametrize("name", [name for name, case in all_cases().items() if case.words])
def test_arguments_that_the_machine_was_not_booted_with_name_the_tool(name: str) -> None:
    verdict, reason = judge(name, load("plain"))
    assert verdict is Verdict.FAIL
    first = all_cases()[name].words[0]
    assert re.match(rf"grubby lost {first}.*: the machine was booted with '", reason)


def test_arguments_in_another_order_are_lost() -> None:
    tree = load("two-sizes")
    line = tree.files["proc/cmdline"].replace("hugepagesz=1G hugepages=1 ", "") + " hugepagesz=1G hugepages=1"
    assert judge("two-sizes", with_files(tree, **{"proc/cmdline": line.replace("\n", "")}))[0] is Verdict.FAIL


def test_memory_that_was_not_reserved_at_boot_before_sysctl() -> None:
    name = "sysctl-below-parameter"
    tree = machine_of(name)
    log = tree.files["dmesg"].replace("2.00 MiB page size, pre-allocated 245", "2.00 MiB page size, pre-allocated 200")
    assert log != tree.files["dmesg"]
    verdict, reason = judge(name, with_files(tree, dmesg=log))
    assert verdict is Verdict.FAIL
    assert "pre-allocated 245 pages" in reason


def test_a_complaint_in_the_log_fails() -> None:
    log = load("thp-never").files["dmesg"] + "<4>[    9.000000] HugeTLB: unsupported hugepagesz=5M\n"
    assert judge("thp-never", with_files(load("thp-never"), dmesg=log))[0] is Verdict.FAIL


def test_a_machine_that_cannot_be_described_is_an_error() -> None:
    files = {path: text for path, text in load("plain").files.items() if path != "proc/sys/kernel/arch"}
    verdict, reason = judge("sysctl", CapturedTree(files))
    assert (verdict, reason[:26]) == (Verdict.ERROR, "the machine cannot be read")


# --- before and after all cases ---


def test_baseline() -> None:
    assert judge_baseline(facts_of("plain"), None, None, nothing_set, ()) == (Verdict.PASS, "")
    words = all_cases()["two-sizes"].words
    assert judge_baseline(facts_of("two-sizes"), None, None, nothing_set, ("root=/dev/a", *words)) == (Verdict.PASS, "")


def test_baseline_with_huge_pages_of_its_own_sysctl() -> None:
    facts = read_facts(with_pool(load("plain"), 7))
    assert judge_baseline(facts, None, Persisted(7, Path("/etc/sysctl.d/my.conf")), nothing_set, ())[0] is Verdict.PASS
    verdict, reason = judge_baseline(facts, None, None, nothing_set, ())
    assert verdict is Verdict.ERROR
    assert reason.startswith("the machine is not as its kernel arguments and files say, before any change: ")


@pytest.mark.parametrize(
    ("switch", "text", "value"),
    [
        ("defrag", "[always] defer defer+madvise madvise never\n", "always"),
        ("use_zero_page", "0\n", "0"),
        ("khugepaged/max_ptes_none", "0\n", "0"),
        ("khugepaged/scan_sleep_millisecs", "1000\n", "1000"),
    ],
)
def test_switches_that_nobody_has_set_are_those_of_the_kernel(switch: str, text: str, value: str) -> None:
    """What a file of the system accounts for is told, and nothing else is excused by it."""
    tree = with_files(load("plain"), **{f"sys/kernel/mm/transparent_hugepage/{switch}": text})

    def settings(name: str, found: str) -> list[str]:
        return ["/etc/tmpfiles.d/thp.conf"] if (name, found) == (switch, value) else []

    facts = read_facts(tree)
    verdict, reason = judge_baseline(facts, None, None, settings, ())
    assert verdict is Verdict.PASS
    assert f"{switch} is {value} and not " in reason
    assert "/etc/tmpfiles.d/thp.conf" in reason
    verdict, reason = judge_baseline(facts, None, None, nothing_set, ())
    assert verdict is Verdict.ERROR
    assert switch in reason


def test_a_policy_that_a_file_sets_is_no_loss_of_the_boot_loader() -> None:
    tree = with_files(load("thp-never"), **{THP: "[always] madvise never\n"})

    def judge_with(find: FindSettings) -> tuple[Verdict, str]:
        return judge_case(all_cases()["thp-never"], read_facts(tree), None, None, find, "grubby")

    assert judge_with(nothing_set)[0] is Verdict.FAIL
    verdict, reason = judge_with(lambda _switch, _value: ["/etc/tuned/mine/tuned.conf"])
    assert (verdict, reason) == (Verdict.PASS, "enabled is always and not never by /etc/tuned/mine/tuned.conf")


def test_baseline_of_a_machine_that_boots_next_with_others() -> None:
    verdict, reason = judge_baseline(facts_of("default-size"), None, None, nothing_set, ("root=/dev/a",))
    assert verdict is Verdict.ERROR
    assert reason.endswith("boots next with 'root=/dev/a': reboot first")


def test_parameters_of_the_machine_itself_that_its_kernel_does_not_know_decide_nothing() -> None:
    tree = load("thp-never")
    line = tree.files["proc/cmdline"].strip() + " thp_anon=64K:always"
    log = tree.files["dmesg"] + '<5>[    0.100000] Unknown kernel command line parameters "thp_anon=64K:always"'
    log += ", will be passed to user space.\n"
    tree = with_files(tree, **{"proc/cmdline": line, "dmesg": log})
    assert judge("thp-never", tree) == (Verdict.PASS, "")


def test_comparison_of_the_machine_before_and_after() -> None:
    before = stable_observations(facts_of("plain"))
    busy = re.sub(r"AnonHugePages: +\d+ kB", "AnonHugePages:    4096 kB", load("plain").files["proc/meminfo"])
    scans = "sys/kernel/mm/transparent_hugepage/khugepaged/full_scans"
    after = read_facts(with_files(load("plain"), **{"proc/meminfo": busy, scans: "12\n"}))
    assert after.observations() != facts_of("plain").observations()
    assert compare_machines(before, stable_observations(after)) == []
    lines = compare_machines(before, stable_observations(facts_of("default-size")))
    assert "hugepages-2048kB/nr_hugepages: 0 before all cases, 122 after them" in lines
    assert compare_machines({"a": 1}, {"b": 2}) == [
        "a: 1 before all cases, nothing after them",
        "b: nothing before all cases, 2 after them",
    ]


def test_a_kernel_without_huge_pages_has_nothing_that_sysctl_could_set() -> None:
    prediction = Prediction("", ())
    assert after_sysctl(prediction, 4, GIB) == prediction


def test_sysctl_that_asks_for_more_than_memory_is_bounded() -> None:
    tree = with_pool(load("default-size"), 1150)
    facts, wish = read_facts(tree), Persisted(1250, OWN_FILE)
    assert judge_baseline(facts, None, wish, nothing_set, facts.command_line.split()) == (Verdict.PASS, "")
    verdict, reason = judge_baseline(facts, None, Persisted(1100, OWN_FILE), nothing_set, facts.command_line.split())
    assert verdict is Verdict.ERROR
    assert "expected 0..1100, found 1150 (rule sysctl-wins-later" in reason
