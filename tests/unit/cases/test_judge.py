"""Red means the kernel: what is a failure of a case, what an error of the suite, and what neither."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import NoReturn

import pytest
from tests.unit.cases.still_machine import SIZE, StillMachine, judge_on

from hugepage_qa.cases import judge as judge_module
from hugepage_qa.cases.case import Area, Around, Sizes
from hugepage_qa.cases.expectations import KnownBug
from hugepage_qa.cases.judge import run_area
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import NOT_RUN, Result, Verdict
from hugepage_qa.cases.selection import EVERYTHING, Selection
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.pool.known_pool_issues import POOL_ISSUES
from hugepage_qa.process.actor import Fault, Refused
from hugepage_qa.process.actor_link import ActorGone, ActorStarved
from hugepage_qa.sizes import GIB
from hugepage_qa.version import KernelVersion

_SURPLUS = f"sys/kernel/mm/hugepages/hugepages-{SIZE // 1024}kB"


def _raising(error: Exception) -> Callable[..., NoReturn]:
    def act(*_arguments: object) -> NoReturn:
        raise error

    return act


def test_a_case_that_finds_nothing_passes() -> None:
    assert judge_on(StillMachine(), lambda live: live.expect_pool(nr=0, free=0)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "error",
    [
        Refused(errno.ENOMEM, "mmap"),
        Fault(7, 2, 0x1000),
        ActorGone("the actor ended"),
    ],
    ids=str,
)
def test_what_the_kernel_refuses_a_case_is_a_failure(error: Exception) -> None:
    judgement = judge_on(StillMachine(), _raising(error))
    assert judgement.verdict is Verdict.FAIL
    assert "what is judged here" in judgement.reason


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EMFILE, "Too many open files"),
        ActorStarved("it had 1 s of a CPU"),
        InputError("the compiler failed"),
        KeyError("a mistake of a case"),
    ],
    ids=str,
)
def test_what_the_suite_cannot_do_is_an_error_with_its_traceback(error: Exception) -> None:
    judgement = judge_on(StillMachine(), _raising(error))
    assert judgement.verdict is Verdict.ERROR
    assert type(error).__name__ in judgement.reason
    assert "Traceback" in judgement.evidence


def test_a_write_that_the_kernel_refuses_is_told_with_file_and_value() -> None:
    machine = StillMachine({"write": _raising(OSError(errno.EINVAL, os.strerror(errno.EINVAL)))})
    judgement = judge_on(machine, lambda live: live.host.write("proc/sys/vm/nr_hugepages", "7"))
    assert judgement.verdict is Verdict.FAIL
    assert "Invalid argument" in judgement.reason


def test_a_suite_without_descriptors_is_no_refusal_of_the_kernel() -> None:
    machine = StillMachine({"write": _raising(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))})
    judgement = judge_on(machine, lambda live: live.expect_errno(errno.EMFILE, live.host.write, "a", "b"))
    assert judgement.verdict is Verdict.ERROR


def test_a_difference_stays_one_when_the_suite_breaks_later() -> None:
    def act(live: Live) -> None:
        live.expect("a fact", 1, 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    judgement = judge_on(StillMachine(), act)
    assert judgement.verdict is Verdict.FAIL
    assert "No space left" in judgement.reason


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_process_that_never_ends_is_the_kernels_although_nothing_can_be_cleared_up_then(
    at_the_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = _raising(ActorGone("blocked in the kernel for 300 s"))
    monkeypatch.setattr(Host, "start_actor", lambda _host: SimpleNamespace(end=never if at_the_end else lambda: None))

    def act(live: Live) -> None:
        live.actor()
        live.when_actors_have_ended(_raising(OSError(errno.EBUSY, "umount")))
        if not at_the_end:
            never()

    judgement = judge_on(StillMachine(), act)
    assert judgement.verdict is Verdict.FAIL
    assert "blocked in the kernel" in judgement.reason
    assert "umount" in judgement.reason


def test_what_a_broken_suite_leaves_behind_is_no_finding() -> None:
    """A starved actor still has its pages."""
    pages = iter([0, 0, 0, 0, 0, 0])

    def observe(path: str) -> str | None:
        text = StillMachine().perform("read", [path])
        return f"{1 + next(pages, 0)}\n" if path.endswith("kB/resv_hugepages") else text

    judgement = judge_on(StillMachine({"observe": observe}), _raising(ActorStarved("it had 1 s of a CPU")))
    assert judgement.verdict is Verdict.ERROR
    assert "nothing-left" in judgement.reason


@pytest.mark.parametrize(
    ("spoils", "ends_known", "verdict"),
    [(True, True, Verdict.KNOWN), (False, True, Verdict.FAIL), (True, False, Verdict.FAIL)],
)
def test_a_known_bug_may_leave_something_on_a_machine_that_it_spoils(
    spoils: bool, ends_known: bool, verdict: Verdict
) -> None:
    left: list[str] = []

    def observe(path: str) -> str | None:
        return "1\n" if left and path.endswith("kB/resv_hugepages") else StillMachine().perform("read", [path])

    def act(live: Live) -> None:
        live.host.is_spoiled = spoils
        left.append("a page that is reserved for nobody")
        if ends_known:
            raise KnownBug(POOL_ISSUES[Quirk.COPY_LOSES_RESERVATION])

    assert judge_on(StillMachine({"observe": observe}), act).verdict is verdict


def test_a_kernel_in_trouble_is_one_although_the_suite_broke() -> None:
    machine = StillMachine({"new_kernel_log": lambda: ["BUG: Bad page state in process actor"]})
    assert judge_on(machine, _raising(ActorStarved("it had 1 s of a CPU"))).verdict is Verdict.FAIL


_OUT_OF_MEMORY = "Out of memory: Killed process 4711 (actor) total-vm:4096kB"


class Used(StillMachine):
    """A machine that others use, too."""

    kind = replace(StillMachine.kind, has_others=True)


def test_memory_that_runs_out_is_the_kernels_where_nobody_else_takes_any() -> None:
    machine = StillMachine({"new_kernel_log": lambda: [_OUT_OF_MEMORY]})
    assert judge_on(machine, lambda live: live.expect_pool(nr=0, free=0)).verdict is Verdict.FAIL


@pytest.mark.parametrize("error", [ActorGone("the actor ended"), Refused(errno.ENOMEM, "mmap")], ids=str)
def test_memory_that_runs_out_beside_others_is_an_error(error: Exception) -> None:
    machine = Used({"new_kernel_log": lambda: [_OUT_OF_MEMORY]})
    for act in (lambda live: live.expect_pool(nr=0, free=0), _raising(error)):
        judgement = judge_on(machine, act)
        assert judgement.verdict is Verdict.ERROR
        assert _OUT_OF_MEMORY in judgement.reason


def test_what_is_wrong_stays_so_where_memory_runs_out_beside_others() -> None:
    machine = Used({"new_kernel_log": lambda: [_OUT_OF_MEMORY]})
    assert judge_on(machine, lambda live: live.expect("words that changed", 0, 1)).verdict is Verdict.FAIL


_OF_A_DRIVER = "WARNING: CPU: 1 PID: 2 at drivers/net/ethernet/some.c:12 some_poll+0x10/0x20 [some]"


@pytest.mark.parametrize(
    ("machine", "taint", "line", "verdict"),
    [
        (StillMachine, 1 << 5, "", Verdict.FAIL),
        (Used, 1 << 7, "", Verdict.FAIL),
        # a module that somebody has loaded
        (Used, 1 << 12 | 1 << 13, "", Verdict.PASS),
        (Used, 1 << 9, _OF_A_DRIVER, Verdict.PASS),
        (
            Used,
            1 << 9,
            "WARNING: drivers/net/ethernet/some.c:12 at some_poll+0x10/0x20, CPU#1: swapper/2",
            Verdict.PASS,
        ),
        # where cases come, too
        (Used, 1 << 9, "WARNING: CPU: 1 PID: 2 at virt/kvm/kvm_main.c:3 kvm_release+0x1/0x2 [kvm]", Verdict.FAIL),
        (Used, 1 << 9, "WARNING: drivers/dma-buf/udmabuf.c:4 at release_udmabuf+0x1/0x2, CPU#1: x/2", Verdict.FAIL),
        (Used, 1 << 9, "WARNING: CPU: 1 PID: 2 at lib/percpu-refcount.c:179 percpu_ref_switch+0x1/0x2", Verdict.FAIL),
        (Used, 1 << 9, "", Verdict.FAIL),
        (StillMachine, 1 << 9, _OF_A_DRIVER, Verdict.FAIL),
        # a processor of a busy machine may go on no more for seconds
        (Used, 1 << 14, "", Verdict.ERROR),
        (StillMachine, 1 << 14, "", Verdict.FAIL),
    ],
)
def test_what_taints_a_kernel_is_told_from_what_others_did(
    machine: type[StillMachine], taint: int, line: str, verdict: Verdict
) -> None:
    def observe(path: str) -> str | None:
        text: str | None = StillMachine().perform("observe", [path])
        return f"{taint}\n" if path == "proc/sys/kernel/tainted" else text

    found = judge_on(machine({"observe": observe, "new_kernel_log": lambda: [line]}), lambda _live: None)
    assert found.verdict is verdict, found.reason
    assert line in found.reason or verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("machine", "line", "verdict"),
    [
        (StillMachine, "vmstat_refresh: nr_mlock -29", Verdict.FAIL),
        (StillMachine, "vmstat_refresh: nr_hugetlb -1", Verdict.PASS),
        (Used, "vmstat_refresh: nr_mlock -29", Verdict.PASS),
    ],
)
def test_a_counter_that_fell_below_zero(machine: type[StillMachine], line: str, verdict: Verdict) -> None:
    found = judge_on(machine({"new_kernel_log": lambda: [line]}), lambda _live: None)
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize(
    ("version", "counter", "verdict"),
    [
        (KernelVersion(6, 11), "nr_isolated_anon", Verdict.PASS),
        (KernelVersion(6, 11), "nr_anon_pages", Verdict.FAIL),
        (KernelVersion(6, 12), "nr_isolated_anon", Verdict.FAIL),
    ],
)
def test_a_counter_that_fell_below_zero_on_a_spoiled_machine(
    version: KernelVersion, counter: str, verdict: Verdict
) -> None:
    def spoil(live: Live) -> None:
        live.kernel_version = version
        live.host.is_spoiled = True

    found = judge_on(StillMachine({"new_kernel_log": lambda: [f"vmstat_refresh: {counter} -511"]}), spoil)
    assert found.verdict is verdict, found.reason


@pytest.mark.parametrize("operation", ["skip_kernel_log", "new_kernel_log"])
def test_a_log_that_cannot_be_read_is_an_error(operation: str) -> None:
    machine = StillMachine({operation: _raising(InputError("/dev/kmsg: Operation not permitted"))})
    judgement = judge_on(machine, lambda live: live.expect_pool(nr=0, free=0))
    assert judgement.verdict is Verdict.ERROR
    assert "/dev/kmsg: Operation not permitted" in judgement.reason


def test_a_failure_is_one_although_the_log_cannot_be_read() -> None:
    machine = StillMachine({"new_kernel_log": _raising(InputError("/dev/kmsg: lines were overwritten"))})
    assert judge_on(machine, lambda live: live.expect_pool(nr=1, free=1)).verdict is Verdict.FAIL


@pytest.mark.parametrize(("judged", "verdict"), [(False, Verdict.FAIL), (True, Verdict.PASS)])
def test_what_a_case_reads_of_the_log_is_judged_once(judged: bool, verdict: Verdict) -> None:
    logged = [["BUG: Bad rss-counter state mm:1 type:MM_ANONPAGES val:512"]]
    machine = StillMachine({"new_kernel_log": lambda: logged.pop() if logged else []})

    def case(live: Live) -> None:
        live.host.new_kernel_log(judged=judged)

    found = judge_on(machine, case)
    assert found.verdict is verdict, found.reason
    assert found.reason.count("Bad rss-counter") == (verdict is Verdict.FAIL)


def test_overcommit_is_counted_above_the_surplus_that_is_there() -> None:
    written = []
    shown = {f"{_SURPLUS}/surplus_hugepages": "3\n", f"{_SURPLUS}/nr_hugepages": "5\n"}

    def read(path: str) -> str | None:
        text: str | None = shown.get(path) or StillMachine().perform("read", [path])
        return text

    machine = StillMachine({"read": read, "write": lambda path, text: written.append((path, text))})
    judge_on(machine, lambda live: live.overcommit(2))
    assert (f"{_SURPLUS}/nr_overcommit_hugepages", "5") in written


def test_without_a_pool_only_what_needs_one_is_skipped() -> None:
    once, each = Area("once", sizes=Sizes.ONCE), Area("each")
    for area in (once, each):
        area.case("what is judged here", "nowhere")(_looks_at_thp)
    judgements: list[Result] = []
    machine = StillMachine({"names": lambda _path: [], "read": _read_without_hugetlb, "observe": _read_without_hugetlb})
    for area in (once, each):
        run_area(area, Host(machine), judgements.append)
    found = {judgement.name: judgement.verdict for judgement in judgements}
    assert found == {"/once/-looks-at-thp": Verdict.PASS, "/each/-looks-at-thp": Verdict.SKIP}


def _read_without_hugetlb(path: str) -> str | None:
    text: str | None = StillMachine().perform("read", [path])
    if path == "proc/meminfo" and text is not None:
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("Huge"))
    return text


def _looks_at_thp(live: Live) -> None:
    live.expect("a fact", 1, 1)


def _area(*sizes: Sizes, around: Around = nullcontext) -> Area:
    area = Area("mine", around=around)
    for number, kind in enumerate(sizes):

        def act(_live: Live) -> None: ...

        act.__name__ = f"case_{number}"
        area.case("what is judged here", "nowhere", sizes=kind)(act)
    return area


def _run(area: Area, selection: Selection = EVERYTHING, stops_after: int | None = None) -> dict[str, str]:
    results: list[Result] = []

    def is_over() -> bool:
        return stops_after is not None and len(results) >= stops_after

    run_area(area, Host(StillMachine()), results.append, selection, is_over)
    return {result.name: result.reason for result in results}


@pytest.fixture
def two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The architecture has pages of 2M, which the machine has, and of 4G, which it has not."""
    monkeypatch.setattr(judge_module, "running_mmu", lambda _host: SimpleNamespace(hugetlb={SIZE: None, 4 * GIB: None}))


@pytest.mark.parametrize(
    ("booted_with", "verdict", "reason"),
    [
        ("quiet hugetlb_cma=1:3G cma=0", Verdict.PASS, ""),
        ("quiet hugetlb_cma=1:3 cma=0", Verdict.SKIP, "not booted with hugetlb_cma=1:3G"),
        (None, Verdict.SKIP, "not booted with cma=0 hugetlb_cma=1:3G"),
    ],
)
def test_what_a_machine_was_not_booted_with_is_a_skip(booted_with: str | None, verdict: Verdict, reason: str) -> None:
    def read(path: str) -> str | None:
        text: str | None = StillMachine().perform("read", [path])
        return booted_with if path == "proc/cmdline" else text

    area = Area("still", words="cma=0 hugetlb_cma=1:3G")
    area.case("what is judged here", "nowhere")(lambda _live: None)
    judgement = judge_module.judge(area, area.cases[0], Host(StillMachine({"read": read})), SIZE)
    assert judgement is not None
    assert (judgement.verdict, judgement.reason) == (verdict, reason)


@pytest.mark.usefixtures("two_sizes")
def test_a_page_size_that_the_machine_has_not_is_a_skip() -> None:
    found = _run(_area(Sizes.EACH, Sizes.GIGANTIC, Sizes.BUDDY))
    missing = {name for name, reason in found.items() if reason == "this machine has no pages of 4G"}
    assert missing == {"/mine/case-0/4G", "/mine/case-1/4G"}
    assert found["/mine/case-0/2M"] == found["/mine/case-2/2M"] == ""


def test_a_case_for_which_there_is_no_page_size_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "running_mmu", _raising(InputError("an architecture of the future")))
    machine_has = {name.rpartition("/")[2] for name in _run(_area(Sizes.EACH))}
    found = _run(_area(Sizes.GIGANTIC), Selection(sizes=(SIZE,)))
    assert "2M" in machine_has
    assert found == {"/mine/case-0": f"for {Sizes.GIGANTIC.value} alone, of which the run has none"}


def test_what_was_not_asked_for_leaves_no_result() -> None:
    assert list(_run(_area(Sizes.ONCE, Sizes.EACH), Selection(("case-1",), (SIZE,)))) == ["/mine/case-1/2M"]
    assert _run(_area(Sizes.ONCE), Selection(("another",))) == {}


def test_what_is_left_when_the_run_is_over_is_told() -> None:
    found = _run(_area(Sizes.ONCE, Sizes.ONCE, Sizes.ONCE), stops_after=1)
    assert found == {"/mine/case-0": "", "/mine/case-1": NOT_RUN, "/mine/case-2": NOT_RUN}


def test_what_an_area_keeps_is_there_once_for_all_its_cases() -> None:
    told = []

    @contextmanager
    def around(_host: Host) -> Iterator[None]:
        told.append("begun")
        yield
        told.append("ended")

    assert len(_run(_area(Sizes.ONCE, Sizes.ONCE, around=around))) == 2
    assert told == ["begun", "ended"]
    assert _run(_area(Sizes.ONCE, around=around), Selection(("another",))) == {}
    assert len(told) == 2


@pytest.mark.usefixtures("two_sizes")
def test_cases_run_size_by_size() -> None:
    found = [name.removeprefix("/mine/") for name in _run(_area(Sizes.EACH, Sizes.GIGANTIC, Sizes.ONCE, Sizes.EACH))]
    large = [f"case-{number}/{size}" for size in ("1G", "4G") for number in (0, 1, 3)]
    assert found == ["case-2", "case-0/2M", "case-3/2M", *large]
