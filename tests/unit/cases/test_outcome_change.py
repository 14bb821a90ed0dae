"""Where a case changed its outcome: the search over kernels that are doubles, which kernels there are, which cases."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
from tests.unit.cases.fake_machines import lost

from hugepage_qa.cases import outcome_change
from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_case import BootCase, case_names
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.case import result_name
from hugepage_qa.cases.live_machine import MachinePlan
from hugepage_qa.cases.outcome_change import Candidate, ChangeSearch, find_trial, kernels_in, kernels_of_suite
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.cases.upstream.reproduction import Answer, BugReport, Reproduction, bug_reports
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss

KERNEL = KernelImage(Path("vmlinuz"), "x86_64", "6.12.5-amd64", None)
APPEND = "seeded_fault=none"
#: of a kernel, in a line of them
LETTERS = {
    "p": Verdict.PASS,
    "k": Verdict.KNOWN,
    "f": Verdict.FAIL,
    "s": Verdict.SKIP,
    "e": Verdict.ERROR,
}


def search(kernels: str, *, every: bool = False) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the changes among ``kernels``, a letter each, and which were tried in which order."""
    tried = []

    def attempt(place: int) -> Result:
        tried.append(place)
        return Result("/case", LETTERS[kernels[place]])

    made = ChangeSearch(len(kernels), attempt)
    made.run(every=every)
    assert list(made.results) == tried
    return made.changes, tried


@pytest.mark.parametrize(
    ("kernels", "changes", "tried"),
    [
        ("pf", [(0, 1)], [0, 1]),
        ("pppppppff", [(6, 7)], [0, 8, 4, 6, 7]),
        ("pffffffff", [(0, 1)], [0, 8, 4, 2, 1]),
        ("ffffffkkk", [(5, 6)], [0, 8, 4, 6, 5]),
        # who agree are left alone
        ("ppp", [], [0, 2]),
        ("pfp", [], [0, 2]),
        ("p", [], [0]),
        ("", [], []),
        # three outcomes, two changes
        ("ppkkkff", [(1, 2), (4, 5)], [0, 6, 3, 1, 2, 4, 5]),
    ],
)
def test_what_differs_is_halved(kernels: str, changes: list[tuple[int, int]], tried: list[int]) -> None:
    assert search(kernels) == (changes, tried)


@pytest.mark.parametrize(
    ("kernels", "changes", "tried"),
    [
        ("spfe", [(1, 2)], [0, 1, 3, 2]),
        # the middle one gives way to its neighbours, and what cannot be decided lies between in the end
        ("ppsff", [(1, 3)], [0, 4, 2, 1, 3]),
        ("pssef", [(0, 4)], [0, 4, 2, 1, 3]),
        ("ssss", [], [0, 1, 2, 3]),
        ("sps", [], [0, 1, 2]),
    ],
)
def test_what_cannot_be_decided_is_passed_over(kernels: str, changes: list[tuple[int, int]], tried: list[int]) -> None:
    assert search(kernels) == (changes, tried)


def test_a_few_of_many_are_tried() -> None:
    for first in range(1, 29):
        changes, tried = search("p" * first + "f" * (29 - first))
        assert changes == [(first - 1, first)]
        assert len(tried) <= 7


def test_every_kernel_is_tried_if_asked() -> None:
    assert search("pfspp", every=True) == ([(0, 1), (1, 3)], [0, 1, 2, 3, 4])


def test_known_bugs_are_an_outcome_each_and_numbers_of_one_run_are_none() -> None:
    """One bug is mended of two that were known; what is told besides the bugs is of one boot."""
    known = [("two bugs",), ("two bugs", "booted again"), ("one bug",), ("one bug",)]
    made = ChangeSearch(4, lambda place: Result("/case", Verdict.KNOWN, known[place]))
    made.run()
    assert made.changes == [(1, 2)]
    made = ChangeSearch(2, lambda place: Result("/case", Verdict.FAIL, (f"{place} pages",)))
    made.run()
    assert made.changes == []


# --- kernels ---


@pytest.mark.parametrize(
    ("names", "sorted_names"),
    [
        (["6.10.1", "6.9.3", "6.9.12"], ["6.9.3", "6.9.12", "6.10.1"]),
        (["6.1.0-10-amd64", "6.1.0-9-amd64"], ["6.1.0-9-amd64", "6.1.0-10-amd64"]),
        (
            ["6.12.90+deb12.1-cloud-amd64", "6.12.90+deb12-cloud-amd64", "6.12.88+deb12-cloud-amd64"],
            ["6.12.88+deb12-cloud-amd64", "6.12.90+deb12-cloud-amd64", "6.12.90+deb12.1-cloud-amd64"],
        ),
        (["7.3.0", "7.3.0-rc10", "7.3.0-rc9", "7.2.9"], ["7.2.9", "7.3.0-rc9", "7.3.0-rc10", "7.3.0"]),
    ],
)
def test_kernels_are_sorted_by_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: list[str], sorted_names: list[str]
) -> None:
    def packages(_architecture: str, _cache: Path, suite: str, report: object) -> list[str]:
        assert (suite, report) == ("sid", settings.say)
        return [f"linux-image-{name}" for name in names]

    settings = Settings(cache=tmp_path)
    monkeypatch.setattr(outcome_change, "kernel_packages", packages)
    found = kernels_of_suite("sid", "aarch64", settings)
    assert [one.label for one in found] == sorted_names
    assert [one.settings.package for one in found] == [f"linux-image-{name}" for name in sorted_names]
    assert {(one.architecture, one.settings.suite) for one in found} == {("aarch64", "sid")}


Kernel = Callable[[str], bytes]


def test_kernels_of_a_directory_by_what_they_say(tmp_path: Path, bzimage: Kernel) -> None:
    for file, release in (("a", "6.12.5"), ("b", "6.1.9"), ("c", "6.12.5")):
        (tmp_path / file).write_bytes(bzimage(release))
    (tmp_path / "vmlinuz-6.13.0").write_bytes(bzimage("6.13.0"))
    (tmp_path / "config-6.12.5").write_text("CONFIG_HUGETLBFS=y\n")
    (tmp_path / "folder").mkdir()
    said: list[str] = []
    found = kernels_in(tmp_path, None, Settings(cache=tmp_path, say=said.append))
    assert [one.label for one in found] == ["6.1.9 (b)", "6.12.5 (a)", "6.12.5 (c)", "vmlinuz-6.13.0"]
    assert [one.settings.kernel for one in found] == [tmp_path / name for name in (*"bac", "vmlinuz-6.13.0")]
    assert said == ["no kernels: config-6.12.5"]
    assert kernels_in(tmp_path, "s390x", Settings(cache=tmp_path, say=said.append)) == []
    assert said[1] == "no kernels for s390x: a, b, c, config-6.12.5, vmlinuz-6.13.0"


def test_kernels_of_several_architectures_need_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x86_64").touch()
    (tmp_path / "s390x").touch()
    monkeypatch.setattr(
        outcome_change, "open_kernel", lambda path, _cache, _wanted: KernelImage(path, path.name, "6.1.9", None)
    )
    with pytest.raises(InputError, match="for s390x, x86_64; choose one with --arch"):
        kernels_in(tmp_path, None, Settings(cache=tmp_path))


def test_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none: expected a directory"):
        kernels_in(tmp_path / "none", None, Settings(cache=tmp_path))


# --- outcomes ---


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Candidate:
    """Return a candidate whose kernel can be had."""
    monkeypatch.setattr(outcome_change, "find_kernel", lambda _architecture, _settings: KERNEL)
    return Candidate("6.12.5", "x86_64", Settings(cache=tmp_path, append=APPEND))


def test_a_kernel_that_cannot_be_had_or_does_not_boot_decides_nothing(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(_kernel: KernelImage, _settings: Settings) -> Result:
        raise lost(Loss.PANICKED)

    result = candidate.outcome(panics)
    assert (result.verdict, result.reason) == (Verdict.ERROR, str(lost(Loss.PANICKED)))

    def gone(_architecture: str, _settings: Settings) -> KernelImage:
        raise InputError("no version can be fetched")

    monkeypatch.setattr(outcome_change, "find_kernel", gone)
    result = candidate.outcome(panics)
    assert (result.verdict, result.reason) == (Verdict.ERROR, "no version can be fetched")


@pytest.mark.parametrize(
    ("found", "verdict", "reason"),
    [
        (Reproduction(Answer.RIGHT, ("found: 1",)), Verdict.PASS, ""),
        (Reproduction(Answer.BUG, ("expected: 1", "found: 2")), Verdict.FAIL, "found: 2"),
        (Reproduction(Answer.UNDECIDED, ("found: 1",), "no pages"), Verdict.SKIP, "no pages"),
    ],
)
def test_a_reproducer_passes_or_fails(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch, found: Reproduction, verdict: Verdict, reason: str
) -> None:
    words = []

    def reproduce(_report: BugReport, _kernel: KernelImage, _cache: Path, append: str) -> Reproduction:
        words.append(append)
        return found

    monkeypatch.setattr(outcome_change, "reproduce", reproduce)
    result = candidate.outcome(find_trial("fork-loses-pages", "x86_64"))
    assert (result.verdict, result.reason) == (verdict, reason)
    assert words == [APPEND]


class FakeMatrix:
    """Boots a case of each name asked for, on the CPU asked for."""

    def __init__(self, _architecture: str, _settings: Settings) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def named_cases(self, groups: tuple[str, ...], cpu: str) -> list[BootCase]:
        names = [name for name in case_names() if name.startswith(f"/{groups[0]}/")]
        mark = "" if cpu == "max" else f"@{cpu}"
        return [BootCase(f"{name}{mark}", "x86_64", cpu, "", ()) for name in names]

    def run(self, cases: Sequence[BootCase]) -> Iterator[Result]:
        for case in cases:
            yield Result(case.name, Verdict.PASS)


@pytest.mark.parametrize(
    ("name", "booted"),
    [
        ("/order/six-parameters", "/order/six-parameters"),
        ("/order/six-parameters@qemu64", "/order/six-parameters@qemu64"),
    ],
)
def test_one_boot_case_is_booted(candidate: Candidate, monkeypatch: pytest.MonkeyPatch, name: str, booted: str) -> None:
    monkeypatch.setattr(outcome_change, "Matrix", FakeMatrix)
    result = candidate.outcome(find_trial(name, "x86_64"))
    assert (result.name, result.verdict) == (booted, Verdict.PASS)


def test_a_boot_case_that_is_not_for_the_machine_is_a_skip(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_change, "Matrix", FakeMatrix)
    monkeypatch.setattr(FakeMatrix, "named_cases", lambda *_: [])
    assert candidate.outcome(find_trial("/order/six-parameters", "x86_64")).verdict is Verdict.SKIP


class FakeRun:
    """Gives the verdicts that it is told to, on one machine."""

    verdicts: Sequence[Verdict] = ()
    plan: MachinePlan
    wanted: LiveWanted

    def __init__(self, plan: MachinePlan, machines: int, *_told: object) -> None:
        FakeRun.plan = plan
        assert machines == 1

    def run(self, wanted: LiveWanted, _took: object) -> Iterator[Result]:
        FakeRun.wanted = wanted
        for verdict in self.verdicts:
            yield Result(f"/{verdict}", verdict)


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ("p", "p"),
        ("ps", "p"),
        ("pk", "k"),
        ("pkf", "f"),
        ("fe", "f"),
        ("pe", "e"),
        ("ss", "s"),
        ("", "s"),
    ],
)
def test_the_outcome_of_a_live_case_is_the_worst_that_was_judged(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch, verdicts: str, outcome: str
) -> None:
    monkeypatch.setattr(outcome_change, "ThrowawayRun", FakeRun)
    monkeypatch.setattr(FakeRun, "verdicts", [LETTERS[letter] for letter in verdicts])
    result = candidate.outcome(find_trial("/memory/mremap/moved-4-gib/2M@qemu64", "x86_64"))
    assert result.verdict is LETTERS[outcome]
    assert (FakeRun.plan.cpu, FakeRun.plan.append) == ("qemu64", APPEND)
    assert [area.name for area in FakeRun.wanted.areas] == ["memory/mremap"]
    assert FakeRun.wanted.selection.cases == ("/memory/mremap/moved-4-gib/2M",)


# --- names ---


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("nosuch", "such as"),
        ("fork-loses-page", "such as fork-loses-pages"),
        ("/order/six-parameter", "such as /order/six-parameters"),
        ("/order/six-parameters@vax", "vax"),
        ("fork-loses-pages@qemu64", "such as fork-loses-pages"),
        ("moved-4-gib@vax", "vax"),
        ("/memory/mremap/moved-4-gib/3M", "such as"),
        ("", "such as"),
    ],
)
def test_a_name_that_nothing_has_is_refused(name: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        find_trial(name, "x86_64")


def test_no_two_kinds_of_cases_have_one_name() -> None:
    live = {result_name(area, case, None) for area in live_areas() for case in area.cases}
    assert not live & set(case_names())
    assert not {name.rpartition("/")[2] for name in live} & set(bug_reports())
