"""The chain over many boots: what is judged when, what is left behind, and what ends it."""

import errno
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.unit.cases.reboot.conftest import POOL, all_cases
from tests.unit.cases.reboot.fake_machine import BASE, FakeLoader, FakeMachine, run_chain

from hugepage_qa.cases.reboot.reboot_chain import Chain
from hugepage_qa.cases.reboot.reboot_state import StateFile
from hugepage_qa.cases.reboot.run_time_settings import OWN_FILE, Persisted
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.machine.kept_file import Repair

THP = "sys/kernel/mm/transparent_hugepage/enabled"
STATE = "reboot-cases.json"


def start(machine: FakeMachine, data: Path, boot: int) -> list[Result]:
    """Start once; return the results as they are then."""
    results: list[Result] = []

    def report(found: Sequence[Result]) -> None:
        results[:] = found

    Chain(machine, data, report, lambda _: None).start(boot)
    return results


def not_passed(results: dict[str, Result]) -> dict[str, Verdict]:
    return {
        name: results[name].verdict for name in of_this_machine(results) if results[name].verdict is not Verdict.PASS
    }


def of_this_machine(names: Iterable[str]) -> list[str]:
    """Return the names without those of cases for kernels with hugetext, for which no machine here is rebooted."""
    return [name for name in names if "hugetext" not in name]


def test_every_case_is_a_reboot_and_the_machine_is_as_before(tmp_path: Path) -> None:
    machine = FakeMachine()
    results = run_chain(machine, tmp_path)
    assert of_this_machine(results) == ["baseline", *all_cases(), "put-back"]
    assert {results[name].verdict for name in results.keys() - set(of_this_machine(results))} == {Verdict.SKIP}
    assert not_passed(results) == {}
    # one more to compare the machine
    assert machine.boots == len(all_cases()) + 1
    assert (machine.loader.words, machine.pages, machine.case) == (BASE, None, "plain")


def test_what_a_case_may_change_is_in_the_journal_before(tmp_path: Path) -> None:
    machine = FakeMachine()
    run_chain(machine, tmp_path, "/reboot/sysctl-below-parameter")
    assert machine.journals[0].kept == [str(OWN_FILE), "/etc/default/grub", f"grubby: {len(BASE)}"]
    assert machine.journals[0].token == json.loads((tmp_path / STATE).read_text())["token"]


def test_logs_are_kept(tmp_path: Path) -> None:
    results = run_chain(FakeMachine(), tmp_path)
    logs = {name: (tmp_path / results[name].logs[0]).read_text() for name in of_this_machine(results)}
    assert logs["baseline"] == "Linux version of boot 0\n"
    assert logs["default-size"] == "Linux version of boot 1\n"
    assert logs["boot-against-run-time"].startswith("--- /proc/buddyinfo, fragmented\n")
    assert "/proc/buddyinfo" not in logs["put-back"]


def test_reservation_at_run_time_is_evidence_and_no_verdict(tmp_path: Path) -> None:
    result = run_chain(FakeMachine(comes_at_run_time=0), tmp_path)["boot-against-run-time"]
    assert result.verdict is Verdict.PASS
    assert result.reason == "at run time 0 of 1179 pages came, with 4096 unmovable pages in memory"


def test_more_pages_than_asked_for_fail_at_run_time(tmp_path: Path) -> None:
    machine = FakeMachine(comes_at_run_time=1180)
    result = run_chain(machine, tmp_path)["boot-against-run-time"]
    assert result.verdict is Verdict.FAIL
    assert result.reason.startswith("nr_hugepages at run time: expected at most 1179, found 1180 (rule never-more-than")


def test_results_at_every_moment_name_what_is_missing(tmp_path: Path) -> None:
    machine = FakeMachine()
    for boot in (0, 1):
        results = start(machine, tmp_path, boot)
        assert [result.verdict for result in results[: boot + 1]] == [Verdict.PASS] * (boot + 1)
        assert {(one.verdict, one.reason) for one in results[boot + 1 :] if "hugetext" not in one.name} == {
            (Verdict.ERROR, "not run: the chain of reboots ended before")
        }
        assert of_this_machine(one.name for one in results) == [
            "/reboot/baseline",
            *(case.name for case in all_cases().values()),
            "/reboot/put-back",
        ]


def test_a_falsified_fact_fails_its_case_alone(tmp_path: Path) -> None:
    machine = FakeMachine(falsified={"thp-never": {THP: "[always] madvise never\n"}})
    results = run_chain(machine, tmp_path)
    assert not_passed(results) == {"thp-never": Verdict.FAIL}
    assert "transparent_hugepage/enabled: expected never, found always" in results["thp-never"].reason


def test_arguments_that_the_tool_lost_fail_without_a_boot(tmp_path: Path) -> None:
    machine = FakeMachine(FakeLoader(loses="transparent_hugepage=madvise"))
    results = run_chain(machine, tmp_path)
    assert not_passed(results) == {"thp-madvise": Verdict.FAIL}
    assert results["thp-madvise"].reason.startswith("grubby lost transparent_hugepage=madvise: the entry that boots")
    assert machine.boots == len(all_cases())


@pytest.mark.parametrize("tool", ["update-grub", "grubby"])
def test_arguments_that_did_not_arrive_fail_and_name_the_tool(tmp_path: Path, tool: str) -> None:
    machine = FakeMachine(FakeLoader(name=tool), boots_another=True)
    results = run_chain(machine, tmp_path, "/reboot/thp-never", "/reboot/thp-always")
    assert not_passed(results) == {"thp-never": Verdict.FAIL, "thp-always": Verdict.FAIL}
    lost = f"{tool} lost transparent_hugepage=never: the machine was booted with '"
    assert results["thp-never"].reason.startswith(lost)


def test_sysctl_is_taken_back_when_the_tool_loses_the_arguments_besides_it(tmp_path: Path) -> None:
    machine = FakeMachine(FakeLoader(loses="hugepages=245"))
    results = run_chain(machine, tmp_path, "/reboot/sysctl-below-parameter")
    assert not_passed(results) == {"sysctl-below-parameter": Verdict.FAIL}


def test_arguments_that_the_tool_left_end_the_chain(tmp_path: Path) -> None:
    machine = FakeMachine(FakeLoader(leaves="hugepages=122"))
    results = run_chain(machine, tmp_path)
    assert results["default-size"].verdict is Verdict.PASS
    assert results["put-back"].reason.startswith("grubby left hugepages=122")
    assert not_passed(results)["put-back"] is Verdict.FAIL
    assert not_passed(results)["two-sizes"] is Verdict.ERROR
    assert (machine.boots, machine.loader.words) == (1, BASE)


def test_a_machine_that_is_not_as_its_arguments_say_is_not_changed(tmp_path: Path) -> None:
    machine = FakeMachine(falsified={"plain": {f"{POOL}/nr_hugepages": "3\n"}})
    results = run_chain(machine, tmp_path)
    assert set(not_passed(results).values()) == {Verdict.ERROR}
    assert results["baseline"].reason.startswith("the machine is not as its kernel arguments and files say")
    assert (machine.boots, machine.journals[0].kept) == (0, [])


def test_a_reboot_that_does_not_come_about_ends_the_chain(tmp_path: Path) -> None:
    machine = FakeMachine(stuck=2)
    results = run_chain(machine, tmp_path)
    assert results["two-sizes"].reason == "tmt-reboot: the machine has not rebooted"
    assert results["node-form"].verdict is Verdict.ERROR
    assert (machine.boots, machine.loader.words) == (2, BASE)


def test_a_machine_that_was_put_back_meanwhile_decides_nothing(tmp_path: Path) -> None:
    machine = FakeMachine(taken_over=3)
    results = run_chain(machine, tmp_path)
    assert results["two-sizes"].verdict is Verdict.PASS
    assert results["node-form"].verdict is Verdict.ERROR
    assert results["node-form"].reason.startswith("the machine was put back before this boot was judged")
    assert machine.boots == 3


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (FakeMachine(applies_sysctl=False), "no systemd: nothing is known to apply sysctl.d at boot"),
        (
            FakeMachine(other_sysctl=Persisted(0, Path("/etc/sysctl.d/zz.conf"))),
            "/etc/sysctl.d/zz.conf sets vm.nr_hugepages after /etc/sysctl.d/99-hugepage-qa.conf",
        ),
    ],
)
def test_machines_on_which_sysctl_decides_nothing(tmp_path: Path, machine: FakeMachine, reason: str) -> None:
    results = run_chain(machine, tmp_path)
    skipped = {name for name, result in results.items() if (result.verdict, result.reason) == (Verdict.SKIP, reason)}
    assert skipped == set(not_passed(results)) == {"sysctl", "sysctl-below-parameter", "sysctl-above-parameter"}
    assert machine.boots == len(all_cases()) - 3 + 1


def test_a_machine_that_is_another_one_afterwards_fails(tmp_path: Path) -> None:
    machine = FakeMachine()
    start(machine, tmp_path, 0)
    machine.falsified = {"plain": {THP: "always madvise [never]\n"}}
    results = {}
    for boot in range(1, 20):
        results = {result.name: result for result in start(machine, tmp_path, boot)}
        if machine.boots == boot:
            break
    last = results["/reboot/put-back"]
    assert last.verdict is Verdict.FAIL
    assert "transparent_hugepage/enabled: always before all cases, never after them" in last.reason


def test_what_could_not_be_put_back_is_an_error(tmp_path: Path) -> None:
    repair = Repair("kernel arguments (grubby)", "quiet", "quiet hugepages=1", "quiet hugepages=1")
    machine = FakeMachine(unrestored=(repair,))
    results = run_chain(machine, tmp_path, "/reboot/thp-never")
    assert results["put-back"].verdict is Verdict.ERROR
    assert results["put-back"].reason == str(repair)


def test_a_chosen_case(tmp_path: Path) -> None:
    machine = FakeMachine()
    assert list(run_chain(machine, tmp_path, "/reboot/thp-always")) == ["baseline", "thp-always", "put-back"]
    assert machine.boots == 2


def test_an_unknown_case(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^case '/reboot/nosuch': expected one of /reboot/default-size, "):
        run_chain(FakeMachine(), tmp_path, "/reboot/nosuch")


# --- the state between the boots ---


def test_state_of_another_chain(tmp_path: Path) -> None:
    start(FakeMachine(), tmp_path, 0)
    with pytest.raises(InputError, match=r"reboot-cases.json: of another chain of reboots, expected none"):
        start(FakeMachine(), tmp_path, 0)


def test_state_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"reboot-cases.json: no such file, expected what boot 0 of the chain wrote"):
        start(FakeMachine(), tmp_path, 1)


def test_a_boot_that_was_not_asked_for(tmp_path: Path) -> None:
    machine = FakeMachine()
    start(machine, tmp_path, 0)
    with pytest.raises(InputError, match=r"^boot 2 by TMT_REBOOT_COUNT: expected 1, as "):
        start(machine, tmp_path, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token": "x"}, "token"),
        ({"boots": -1}, "boots"),
        ({"version": 2}, "version"),
        ({"running": "rm -rf"}, "running"),
        ({"extra": 1}, "extra"),
        ({"done": [{"name": "/reboot/a", "verdict": "great", "reason": "", "seconds": 0, "log": None}]}, "verdict"),
        ({"done": [{"name": "/reboot/a", "verdict": "pass", "reason": "", "seconds": 0, "log": "../x"}]}, "log"),
    ],
)
def test_state_of_another_form(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    machine = FakeMachine()
    start(machine, tmp_path, 0)
    path = tmp_path / STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=rf"reboot-cases\.json: .*{message}"):
        start(machine, tmp_path, 1)


def test_state_that_is_cut_off(tmp_path: Path) -> None:
    machine = FakeMachine()
    start(machine, tmp_path, 0)
    path = tmp_path / STATE
    path.write_text(path.read_text()[:100])
    with pytest.raises(InputError, match=r"reboot-cases\.json: cannot be read"):
        start(machine, tmp_path, 1)


def test_state_of_a_case_that_there_is_not(tmp_path: Path) -> None:
    machine = FakeMachine()
    start(machine, tmp_path, 0)
    file = StateFile(tmp_path)
    chain = file.load()
    assert chain is not None
    file.save(replace(chain, running="/reboot/nosuch"))
    with pytest.raises(InputError, match=r"case '/reboot/nosuch': expected one that there is"):
        start(machine, tmp_path, 1)
    assert machine.loader.words == BASE


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    machine = FakeMachine()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=r"reboot-cases\.json: cannot be written"):
        start(machine, tmp_path, 0)
    assert (machine.boots, machine.loader.words) == (0, BASE)
