"""A kernel judged as a whole: what is run, in which order, and what is remembered. Boots and machines are doubles."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from hugepage_qa.cases import kernel_check
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.kernel_check import KernelCheck
from hugepage_qa.cases.live_machine import MachinePlan
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.selection import Selection
from hugepage_qa.cases.throwaway_run import NODES, LiveWanted
from hugepage_qa.cases.time_limit import NO_TIME
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.installed_emulator import NotOffered
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss, MachineLost
from hugepage_qa.sizes import GIB, MIB

TOLD: list[str] = []
WANTED: list[LiveWanted] = []
CONFIG = {"CONFIG_ARM64_4K_PAGES": "y"}


class FakeMatrix:
    """Boots that pass; it tells what it was asked for."""

    config: dict[str, str] | None = CONFIG
    cases: tuple[str, ...] = ("first",)

    def __init__(self, architecture: str, _settings: Settings) -> None:
        self.board = find_board(architecture)
        self.kernel = KernelImage(Path("vmlinuz"), architecture, "6.1.0", self.config)

    def named_cases(self, groups: tuple[str, ...]) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=f"/{group}/{case}", cpu="max") for group in groups for case in self.cases]

    def run(self, cases: list[SimpleNamespace]) -> Iterator[Result]:
        for case in cases:
            yield Result(case.name, Verdict.PASS)

    def run_random(self, count: int, seed: int) -> Iterator[Result]:
        for number in range(count * len(self.board.cpus)):
            yield Result(f"/random/{seed}/{number}", Verdict.PASS)

    def stop(self) -> None:
        TOLD.append("boots stopped")


class FakeRun:
    """Live cases that pass on each CPU; each takes three seconds. With one CPU a machine may not come up."""

    lost_with = ""
    not_offered = ""
    lost_by = Loss.PANICKED

    def __init__(self, plan: MachinePlan, machines: int, *_told: object) -> None:
        self._plan = plan
        self.seconds: dict[str, float] = {}
        TOLD.append(f"{machines} machines with {plan.cpu}: {plan.append}")

    def run(self, wanted: LiveWanted, took: Mapping[str, float]) -> Iterator[Result]:
        TOLD.append(f"took {dict(took)}")
        WANTED.append(wanted)
        if self._plan.cpu == self.not_offered:
            raise NotOffered(f"qemu-kvm has no -cpu {self._plan.cpu}: it has others")
        if self._plan.cpu == self.lost_with:
            raise MachineLost(self.lost_by, "Kernel panic - not syncing: no init", "the serial console")
        for area in wanted.areas:
            self.seconds[f"/{area.name}"] = 3.0
            yield Result(f"/{area.name}", Verdict.PASS)

    def stop(self) -> None:
        TOLD.append("machines stopped")


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    WANTED.clear()
    monkeypatch.setattr(kernel_check, "Matrix", FakeMatrix)
    monkeypatch.setattr(kernel_check, "ThrowawayRun", FakeRun)


def area(name: str, sizes: Sizes = Sizes.EACH) -> Area:
    made = Area(name, sizes=sizes)

    @made.case("what is judged here", "nowhere")
    def grow(_live: object) -> None: ...

    @made.case("what is judged here, too", "nowhere", sizes=Sizes.ONCE)
    def once(_live: object) -> None: ...

    return made


def check(
    directory: Path,
    wanted: LiveWanted,
    *,
    architecture: str = "x86_64",
    groups: tuple[str, ...] = (),
    random: int = 0,
    machines: int | None = 3,
    within: float | None = None,
) -> KernelCheck:
    settings = Settings(cache=directory, append="quiet", machines=machines)
    return KernelCheck(architecture, settings, groups, random, wanted, within=within)


def names(made: KernelCheck) -> list[str]:
    return [result.name for result in made.run()]


def test_boots_come_first_then_live_cases_on_each_cpu(tmp_path: Path) -> None:
    made = check(tmp_path, LiveWanted([area("pool/pool")], seed=7), groups=("pool", "thp"), random=1)
    assert names(made) == [
        *("/pool/first", "/thp/first", "/random/7/0", "/random/7/1"),
        *("/pool/pool", "/pool/pool@qemu64"),
    ]
    assert [told for told in TOLD if "with" in told] == ["3 machines with max: quiet", "3 machines with qemu64: quiet"]
    assert TOLD[-2:] == ["boots stopped", "machines stopped"]


@pytest.mark.parametrize(("loss", "verdict"), [(Loss.PANICKED, Verdict.FAIL), (Loss.EMULATOR_ENDED, Verdict.ERROR)])
@pytest.mark.parametrize(("cpu", "error"), [("max", "/machine"), ("qemu64", "/machine@qemu64")])
def test_a_cpu_that_does_not_come_up_is_one_result_and_the_other_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: str, error: str, loss: Loss, verdict: Verdict
) -> None:
    monkeypatch.setattr(FakeRun, "lost_with", cpu)
    monkeypatch.setattr(FakeRun, "lost_by", loss)
    results = {result.name: result for result in check(tmp_path, LiveWanted([area("pool/pool")])).run()}
    assert set(results) == ({"/pool/pool", "/pool/pool@qemu64"} - {error.replace("machine", "pool/pool")}) | {error}
    assert results[error].verdict is verdict
    assert results[error].reason == f"{loss.value}: Kernel panic - not syncing: no init"
    assert results[error].evidence == "the serial console"
    assert not (tmp_path / "durations" / f"x86_64-{cpu}.json").exists()


def test_a_cpu_that_the_emulator_does_not_have_is_a_skip_and_the_other_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeRun, "not_offered", "qemu64")
    results = {
        result.name: (result.verdict, result.reason)
        for result in check(tmp_path, LiveWanted([area("pool/pool")])).run()
    }
    skipped = (Verdict.SKIP, "qemu-kvm has no -cpu qemu64: it has others")
    assert results == {"/pool/pool": (Verdict.PASS, ""), "/machine@qemu64": skipped}


def test_without_live_cases_no_machine_is_kept(tmp_path: Path) -> None:
    assert names(check(tmp_path, LiveWanted(), groups=("pool",))) == ["/pool/first"]
    assert TOLD == ["boots stopped"]


def test_random_operations_alone_need_machines(tmp_path: Path) -> None:
    assert names(check(tmp_path, LiveWanted(operations=5))) == []
    assert [told for told in TOLD if "with" in told] == ["3 machines with max: quiet", "3 machines with qemu64: quiet"]


def test_a_soak_runs_on_one_cpu_of_each_kind_of_page_table(tmp_path: Path) -> None:
    made = check(tmp_path, LiveWanted(minutes=4))
    assert made.expected_results == 4
    assert names(made) == []
    assert [told for told in TOLD if "with" in told] == ["3 machines with max: quiet"]


def test_without_a_number_as_many_machines_run_as_the_host_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_check, "machines_at_once", lambda memory: memory >> 30)
    names(check(tmp_path, LiveWanted([area("pool/pool")]), machines=None))
    assert TOLD[0] == f"{sum(NODES) // GIB} machines with max: quiet"


def test_results_are_counted_before_anything_runs(tmp_path: Path) -> None:
    made = check(tmp_path, LiveWanted([area("pool/pool")], operations=9), groups=("pool", "thp"), random=4)
    # 2 boots, 4 random ones on 2 CPUs; grow on 2M and 1G and once on 2 CPUs; random on 2M, and 1G which max alone has
    assert made.expected_results == 2 + 8 + 6 + 3
    assert TOLD == []


def test_what_results_took_is_remembered_for_each_cpu(tmp_path: Path) -> None:
    names(check(tmp_path, LiveWanted([area("pool/pool")])))
    assert TOLD[1] == "took {}"
    assert sorted(file.name for file in (tmp_path / "durations").iterdir()) == ["x86_64-max.json", "x86_64-qemu64.json"]
    TOLD.clear()
    names(check(tmp_path, LiveWanted([area("thp")])))
    assert TOLD[1] == "took {'/pool/pool': 3.0}"
    kept = json.loads((tmp_path / "durations" / "x86_64-max.json").read_text())
    assert kept == {"/pool/pool": 3.0, "/thp": 3.0}


def test_what_cases_took_on_machines_of_another_size_is_not_remembered(tmp_path: Path) -> None:
    names(check(tmp_path, LiveWanted([area("pool/pool")], nodes=(GIB,))))
    assert not (tmp_path / "durations").exists()


def test_where_time_is_short_each_group_and_each_cpu_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMatrix, "cases", ("first", "second"))
    assert names(check(tmp_path, LiveWanted([area("pool/pool")]), groups=("pool", "thp"), within=600)) == [
        *("/pool/first", "/thp/first", "/pool/second", "/thp/second"),
        *("/pool/pool", "/pool/pool@qemu64"),
    ]
    assert [wanted.shortest_first for wanted in WANTED] == [True, True]


def test_boots_that_no_time_is_left_for_are_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMatrix, "cases", ("first", "second"))
    results = list(check(tmp_path, LiveWanted(), groups=("pool", "thp"), within=0.0).run())
    # the first one was on its way
    assert [result.verdict for result in results] == [Verdict.PASS, Verdict.SKIP, Verdict.SKIP, Verdict.SKIP]
    assert {result.reason for result in results[1:]} == {NO_TIME}
    assert len({result.name for result in results}) == 4


@pytest.mark.parametrize(
    ("text", "took"),
    [
        ("", {}),
        ("{", {}),
        ("[1, 2]", {}),
        ("7", {}),
        ('{"a": 1, "b": "long", "c": null, "d": 2.5}', {"a": 1.0, "d": 2.5}),
        ("\xff", {}),
    ],
)
def test_a_memory_that_nobody_understands_only_costs_time(tmp_path: Path, text: str, took: dict[str, float]) -> None:
    (tmp_path / "durations").mkdir()
    (tmp_path / "durations" / "x86_64-max.json").write_bytes(text.encode("latin-1"))
    assert len(names(check(tmp_path, LiveWanted([area("pool/pool")])))) == 2
    assert TOLD[1] == f"took {took}"


def test_who_stops_listening_ends_all(tmp_path: Path) -> None:
    results = check(tmp_path, LiveWanted([area("pool/pool")])).run()
    next(results)
    results.close()
    assert TOLD[-2:] == ["boots stopped", "machines stopped"]
    assert not (tmp_path / "durations").exists(), "what was cut off took longer"


@pytest.mark.parametrize(
    ("architecture", "selection", "named"),
    [
        ("x86_64", Selection(("none",)), "--case none"),
        ("x86_64", Selection(("/pool/pool/grow/16G",)), "--case /pool/pool/grow/16G"),
        ("x86_64", Selection(sizes=(64 * MIB,)), "--size 64M"),
        ("aarch64", Selection(sizes=(512 * MIB,)), "--size 512M"),
    ],
)
def test_what_nothing_has_is_refused_before_anything_runs(
    tmp_path: Path, architecture: str, selection: Selection, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        check(tmp_path, LiveWanted([area("pool/pool")], selection), architecture=architecture)
    assert TOLD == []


def test_what_one_cpu_has_is_not_refused(tmp_path: Path) -> None:
    for size in (16 * MIB, 2 * MIB):
        wanted = LiveWanted([area("pool/pool")], Selection(("grow",), (size,)))
        assert len(names(check(tmp_path, wanted, architecture="ppc64le"))) == 2


def test_a_kernel_that_does_not_tell_its_base_pages_may_have_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMatrix, "config", None)
    wanted = LiveWanted([area("pool/pool")], Selection(sizes=(512 * MIB,)))
    assert check(tmp_path, wanted, architecture="aarch64").architecture == "aarch64"
