"""Every rule catches a machine that breaks it, and says so with the rule, what was expected and what was found."""

from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine
from tests.unit.oracle.right_machine import right_log, right_observations

from hugepage_qa.oracle.architecture import Machine
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.compare import Difference, compare
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.prediction import (
    Absent,
    AtLeast,
    Between,
    Exactly,
    Expectation,
    OneOf,
    Prediction,
    Present,
    SumOf,
    Value,
)
from hugepage_qa.oracle.rules import (
    LOG_FREEABLE,
    LOG_POOL,
    LOG_QUIET,
    LOG_SHORTAGE,
    NODE_FORM,
    RULES,
    SURVIVES,
)

# judged before there are any facts: tests/unit/cases/boot/test_boot_judge.py
ELSEWHERE = {SURVIVES.name}

CONFIG = {
    "CONFIG_TRANSPARENT_HUGEPAGE": "y",
    "CONFIG_TRANSPARENT_HUGEPAGE_ALWAYS": "y",
    "CONFIG_HUGETLB_PAGE": "y",
    "CONFIG_NUMA": "y",
    "CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP": "y",
    "CONFIG_CMA": "y",
    "CONFIG_HUGETEXT": "y",
}

# words, and what the machine is
SCENARIOS: dict[str, tuple[str, dict[str, str]]] = {
    "plain": ("hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=64 hugepages=1", {}),
    "two-nodes": ("hugepages=64", {"memory": "1G,1G"}),
    "node-form": ("hugepages=0:3,1:5", {"memory": "1G,1G"}),
    "short-node": ("hugepagesz=1G hugepages=0:6", {"memory": "4G,12G", "version": "7.2"}),
    "over-ask": ("hugepagesz=1G hugepages=40", {}),
    "cma": ("hugetlb_cma=1G hugepagesz=1G hugepages=2", {"memory": "8G"}),
    "movable-zone": ("kernelcore=1280M movablecore=1G", {"memory": "1G,1G"}),
    "zones-meet": ("movablecore=2560M hugepagesz=1G hugepages=1:4", {"memory": "6G,6G", "version": "7.3"}),
    "cma-used": ("hugetlb_cma=2G default_hugepagesz=1G sysctl.vm.nr_hugepages=2", {"memory": "8G"}),
    "cma-only": (
        "hugetlb_cma=2G hugetlb_cma_only=1 hugetlb_cma_only=x hugepagesz=1G hugepages=3",
        {"memory": "6G,6G", "version": "7.3"},
    ),
    "no-support": ("hugepages=8 transparent_hugepage=always", {"architecture": "s390x"}),
    "small-memory": ("transparent_hugepage=always", {"memory": "256M"}),
    "thp": ("transparent_hugepage=madvise thp_anon=64K:always;2M:inherit transparent_hugepages=x", {"version": "7.2"}),
    "no-thp": ("transparent_hugepage=never", {"version": "6.10"}),
    "shmem": (
        "thp_shmem=64K:always transparent_hugepage_shmem=advise transparent_hugepage_tmpfs=always",
        {"version": "7.2"},
    ),
    "other": ("hugetlb_free_vmemmap=on hugepage_alloc_threads=3 hugepages=8 hugetext=2", {"version": "7.2"}),
    "kvm": ("kvm.hpage=1", {"architecture": "s390x"}),
}


def scenario(name: str, make_machine: MakeMachine) -> tuple[Prediction, dict[str, Value], list[str]]:
    """Return prediction, right observations and right log of a scenario."""
    words, options = SCENARIOS[name]
    machine: Machine = make_machine(**options)
    interfaces = {"hugetext": True, "hugetext_pad_threshold": True, "kvm": True}
    machine = replace(machine, config=CONFIG, unknown_words=(), interfaces=interfaces)
    prediction = predict(words, machine)
    observations = right_observations(prediction)
    return prediction, observations, right_log(prediction, observations)


def wrong_value(expectation: Expectation, found: Value | None) -> Value | None:
    """Return a value that breaks ``expectation``."""
    match expectation.expected:
        case Exactly(value):
            return value + 1 if isinstance(value, int) else f"not-{value}"
        case Between(_, high):
            return high + 1
        case OneOf():
            return "none-of-them"
        case Absent():
            return 1
        case Present():
            return None
        case SumOf():
            return found + 1 if isinstance(found, int) else 1
        case AtLeast():
            return found - 1 if isinstance(found, int) else -1


def breaking_differences(name: str, make_machine: MakeMachine) -> list[Difference]:
    """Return what is found when each expectation of a scenario is broken in turn."""
    prediction, observations, log = scenario(name, make_machine)
    differences = []
    for expectation in prediction.expectations:
        wrong = dict(observations)
        value = wrong_value(expectation, observations.get(expectation.subject))
        wrong.pop(expectation.subject, None)
        if value is not None:
            wrong[expectation.subject] = value
        caught = [one for one in compare(prediction, wrong, log) if one.rule is expectation.rule]
        assert caught, f"{expectation} is not caught"
        differences += caught
    for index in range(len(log)):
        differences += compare(prediction, observations, log[:index] + log[index + 1 :])
    for freeable in prediction.freeable:
        other = f"HugeTLB: {freeable.kib + 1} KiB vmemmap can be freed for a {freeable.size} page"
        differences += compare(prediction, observations, [*log, other])
    complaint = "HugeTLB: Invalid hugepages parameter x"
    differences += compare(prediction, observations, [*log, complaint])
    return differences


@pytest.mark.parametrize("name", SCENARIOS)
def test_right_machine_passes(make_machine: MakeMachine, name: str) -> None:
    assert compare(*scenario(name, make_machine)) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_expectation_can_fail(make_machine: MakeMachine, name: str) -> None:
    for difference in breaking_differences(name, make_machine):
        text = str(difference)
        assert difference.rule.name in text
        assert difference.expected in text
        assert difference.found in text


def test_every_rule_is_broken_by_some_machine(make_machine: MakeMachine) -> None:
    broken = {one.rule.name for name in SCENARIOS for one in breaking_differences(name, make_machine)}
    assert set(RULES) - broken == ELSEWHERE


def test_every_rule_names_its_source() -> None:
    for rule in RULES.values():
        assert rule.statement and rule.source


# --- machines that are wrong in ways of their own ---


def test_pages_on_the_wrong_node_are_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("node-form", make_machine)
    first, second = "node0/hugepages-2048kB/nr_hugepages", "node1/hugepages-2048kB/nr_hugepages"
    observations[first], observations[second] = observations[second], observations[first]
    observations["node0/hugepages-2048kB/free_hugepages"] = observations[first]
    observations["node1/hugepages-2048kB/free_hugepages"] = observations[second]
    differences = compare(prediction, observations, log)
    assert {one.subject for one in differences if one.rule is NODE_FORM} == {first, second}


def test_a_shortage_without_warning_is_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("over-ask", make_machine)
    quiet = [line for line in log if "Only allocated" not in line]
    assert [one.rule for one in compare(prediction, observations, quiet)] == [LOG_SHORTAGE]


def test_a_warning_with_another_count_is_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("over-ask", make_machine)
    got = observations["hugepages-1048576kB/nr_hugepages"]
    wrong = [line.replace(f"Only allocated {got}", "Only allocated 39") for line in log]
    assert [one.rule for one in compare(prediction, observations, wrong)] == [LOG_SHORTAGE]


def test_a_warning_without_shortage_is_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    log.append("HugeTLB: allocating 64 of page size 2.00 MiB failed.  Only allocated 3 hugepages.")
    assert [one.rule for one in compare(prediction, observations, log)] == [LOG_SHORTAGE]


def test_a_log_that_counts_other_pages_is_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    wrong = [line.replace("pre-allocated 64", "pre-allocated 63") for line in log]
    assert [one.rule for one in compare(prediction, observations, wrong)] == [LOG_POOL]


@pytest.mark.parametrize(("kib", "is_right"), [(28, True), (0, True), (32, False), (27, False), (4, False)])
def test_a_log_that_frees_other_struct_pages_is_caught(make_machine: MakeMachine, kib: int, is_right: bool) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    log.append(f"HugeTLB: {kib} KiB vmemmap can be freed for a 2.00 MiB page")
    log.append(f"HugeTLB: {16380 if kib else 0} KiB vmemmap can be freed for a 1.00 GiB page")
    expected = [] if is_right else [LOG_FREEABLE]
    assert [one.rule for one in compare(prediction, observations, log)] == expected


def test_a_log_that_frees_struct_pages_of_one_size_alone_is_caught(make_machine: MakeMachine) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    for kib, size in ((0, "2.00 MiB"), (16380, "1.00 GiB")):
        log.append(f"HugeTLB: {kib} KiB vmemmap can be freed for a {size} page")
    assert [one.rule for one in compare(prediction, observations, log)] == [LOG_FREEABLE]


@pytest.mark.parametrize(
    "line",
    [
        "HugeTLB: hugepages=64 does not follow a valid hugepagesz, ignoring",
        "huge_memory: transparent_hugepage= cannot parse, ignored",
        "Malformed early option 'hugepages'",
        "WARNING: CPU: 0 PID: 1 at mm/hugetlb.c:2910 hugetlb_init+0x1/0x2",
        "WARNING: mm/hugetlb.c:2910 at hugetlb_init+0x1/0x2, CPU#0: swapper/0/1",
        "Booting kernel: `maybe' invalid for parameter `hugetlb_free_vmemmap'",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "BUG: Bad page state in process swapper/0  pfn:10000",
        "WARNING: CPU: 0 PID: 30 at mm/khugepaged.c:2600 khugepaged+0x1/0x2",
        "swapper/0: page allocation failure: order:9, mode:0x0",
    ],
)
def test_an_unasked_complaint_is_caught(make_machine: MakeMachine, line: str) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    assert [one.rule for one in compare(prediction, observations, [*log, line])] == [LOG_QUIET]


def test_a_machine_without_facts_passes_nothing(make_machine: MakeMachine) -> None:
    prediction, _, _ = scenario("plain", make_machine)
    assert compare(prediction, {}, [])


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 1 PID: 0 at arch/x86/kernel/smpboot.c:432 topology_sane.isra.0+0x6b/0x80",
        "WARNING: arch/x86/kernel/smpboot.c:432 at topology_sane.isra.0+0x6b/0x80, CPU#1: swapper/1/0",
    ],
)
def test_a_warning_of_an_emulated_cpu_is_no_complaint(make_machine: MakeMachine, line: str) -> None:
    prediction, observations, log = scenario("plain", make_machine)
    assert compare(prediction, observations, [*log, line]) == []


def test_a_kernel_without_hugetlb_has_no_pools(make_machine: MakeMachine) -> None:
    machine = replace(make_machine(), config={"CONFIG_NUMA": "y"})
    prediction = predict("hugepages=8", machine)
    observations = right_observations(prediction)
    assert compare(prediction, observations, []) == []
    assert compare(prediction, observations | {"meminfo/HugePages_Total": 0}, [])


def test_an_older_kernel_that_knows_no_thp_anon_is_not_blamed(make_machine: MakeMachine) -> None:
    machine = replace(make_machine(version="5.10"), unknown_words=())
    assert not predict("thp_anon=foo", machine).messages


def test_a_short_node_explains_only_pages_that_it_lacked(make_machine: MakeMachine) -> None:
    """Taking all pages from another node is no known issue as long as the named one has room."""
    machine = make_machine(memory="8G,8G", version="6.12")
    prediction = predict("hugepagesz=1G hugepages=1:8", machine, frozenset({Quirk.GIGANTIC_NODE_FALLBACK}))
    first = next(one for one in prediction.expectations if one.subject == "node0/hugepages-1048576kB/nr_hugepages")
    assert isinstance(first.expected, Between)
    assert first.expected.high <= 3
