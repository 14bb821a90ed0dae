"""The examples of the kernel's documents, and the traps that its parsers hold, against the model."""

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.boot.predict import possible_deviations, predict
from hugepage_qa.oracle.known_issues import Quirk
from hugepage_qa.oracle.prediction import (
    Absent,
    Between,
    Exactly,
    Expected,
    Prediction,
)
from hugepage_qa.sizes import GIB, MIB

TOTAL_2M = "hugepages-2048kB/nr_hugepages"
TOTAL_1G = "hugepages-1048576kB/nr_hugepages"


def value(prediction: Prediction, subject: str) -> Expected:
    """Return the strictest expectation of ``subject``."""
    found = [one.expected for one in prediction.expectations if one.subject == subject]
    exact = [expected for expected in found if isinstance(expected, Exactly | Between)]
    return (exact or found)[0]


@pytest.mark.parametrize(
    ("words", "pages_2m", "pages_1g"),
    [
        ("", 0, 0),
        ("hugepages=256", 256, 0),
        ("default_hugepagesz=2M hugepages=256", 256, 0),
        ("hugepages=256 default_hugepagesz=2M", 256, 0),
        ("hugepages=256 hugepagesz=2M hugepages=512", 256, 0),
        ("hugepagesz=3M hugepages=16", 0, 0),
        ("hugepagesz=2M hugepages=0:16", 16, 0),
        ("hugepagesz=2M hugepages=9:16", 0, 0),
        ("hugepagesz=2M hugepages=0:16,9:16", 0, 0),
        ("hugepagesz=2M hugepages=0:16,16", 0, 0),
        ("hugepages=0x10", 0, 0),
        ("hugepages=010", 10, 0),
        ("hugepages=16K", 16, 0),
        ("hugepages=-1", 0, 0),
        ("hugepagesz=0x200000 hugepages=16", 16, 0),
        ("default-hugepagesz=2M hugepages=16", 16, 0),
        ("hugepagesz=1G hugepagesz=1G hugepages=2", 0, 0),
        ("hugepagesz=1G hugepages=2", 0, 2),
        ("hugepages=2 default_hugepagesz=1G", 0, 2),
        ("hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=8", 8, 1),
        ("hugepagesz=2M hugepages=8 hugepages=9", 8, 0),
        ("hugepagesz=3M hugepages=1 hugepages=7", 7, 0),
        ("default_hugepagesz=2M hugepages=8 hugepagesz=2M hugepages=9", 8, 0),
        ("default_hugepagesz=2M hugepagesz=2M hugepages=9", 9, 0),
        ("hugetlb_cma=1G hugepagesz=1G hugepages=2", 0, 0),
    ],
)
def test_counts(make_machine: MakeMachine, words: str, pages_2m: int, pages_1g: int) -> None:
    prediction = predict(words, make_machine())
    assert value(prediction, TOTAL_2M) == Exactly(pages_2m)
    assert value(prediction, TOTAL_1G) == Exactly(pages_1g)


def test_without_pdpe1gb_there_is_no_1g_pool(make_machine: MakeMachine) -> None:
    prediction = predict("hugepagesz=1G hugepages=2", make_machine(cpu="qemu64"))
    assert value(prediction, TOTAL_1G) == Absent()
    assert value(prediction, TOTAL_2M) == Exactly(0)
    assert "HugeTLB: unsupported hugepagesz=1G" in [message.text for message in prediction.messages]


def test_s390x_without_edat_has_no_pools(make_machine: MakeMachine) -> None:
    old = predict("hugepages=8", make_machine("s390x"))
    assert value(old, "meminfo/HugePages_Total") == Absent()
    assert [message.text for message in old.messages] == [
        "HugeTLB: huge pages not supported, ignoring associated command-line parameters"
    ]
    new = predict("hugepages=8", make_machine("s390x", version="7.2"))
    assert [message.text for message in new.messages] == [
        "HugeTLB: hugepages unsupported, ignoring hugepages=8 cmdline"
    ]


def test_pages_spread_evenly(make_machine: MakeMachine) -> None:
    prediction = predict("hugepages=7", make_machine(memory="1G,1G"))
    assert value(prediction, f"node0/{TOTAL_2M}") == Exactly(4)
    assert value(prediction, f"node1/{TOTAL_2M}") == Exactly(3)


def test_memoryless_node_is_left_out(make_machine: MakeMachine) -> None:
    prediction = predict("hugepages=8", make_machine(memory="1G,0"))
    assert value(prediction, f"node0/{TOTAL_2M}") == Exactly(8)
    assert value(prediction, f"node1/{TOTAL_2M}") == Exactly(0)


def test_memory_bounds_an_over_ask(make_machine: MakeMachine) -> None:
    expected = value(predict("hugepagesz=1G hugepages=40", make_machine()), TOTAL_1G)
    assert isinstance(expected, Between)
    assert 1 <= expected.low <= expected.high <= 8


def test_asking_for_everything_may_exhaust_memory(make_machine: MakeMachine) -> None:
    assert predict("hugepages=100000", make_machine()).may_exhaust_memory
    assert not predict("hugepages=100", make_machine()).may_exhaust_memory


@pytest.mark.parametrize(
    ("words", "version", "quirk"),
    [
        ("hugepagesz=1G hugepagesz=2M default_hugepagesz=1G hugepages=1", "6.1", Quirk.DEFAULT_SIZE_NAMED_BEFORE),
        ("hugepages=1 default_hugepagesz=1G hugepages=2", "6.1", Quirk.GIGANTIC_COUNTED_TWICE),
        ("hugepages=0:16,0:8", "6.1", Quirk.COUNT_NOT_RESERVED),
        ("hugepages=4 hugepagesz=2M hugepages=0:1 default_hugepagesz=2M", "7.2", Quirk.IMPLICIT_COUNT_KEEPS_NODES),
        ("transparent_hugepage_shmem=deny", "7.2", Quirk.SHMEM_DENY_LOST),
        ("transparent_hugepage_shmem=force", "7.2", Quirk.SHMEM_FORCE_REFUSED),
    ],
)
def test_known_issue_changes_the_prediction(make_machine: MakeMachine, words: str, version: str, quirk: Quirk) -> None:
    machine = make_machine(version=version)
    assert quirk in possible_deviations(words, machine)
    documented, deviating = predict(words, machine), predict(words, machine, frozenset({quirk}))
    assert (documented.expectations, documented.messages) != (deviating.expectations, deviating.messages)


def test_what_is_shown_of_known_issues_wraps_below_zero(make_machine: MakeMachine) -> None:
    words = "hugepages=4 hugepagesz=1G hugepages=1:40 default_hugepagesz=1G"
    machine = make_machine(memory="3G,4G", version="7.3")
    both = frozenset({Quirk.IMPLICIT_COUNT_KEEPS_NODES, Quirk.COUNT_NOT_RESERVED})
    prediction = predict(words, machine, both)
    reserved, shown = value(prediction, TOTAL_1G), value(prediction, "vm/nr_hugepages")
    assert isinstance(reserved, Between)
    # of the 40 pages those that node 1 has no room for are taken off the 4 that are counted
    assert shown == Between(2**64 - 36 + reserved.low, 2**64 - 36 + reserved.high)
    # 3 or 4 of 8 there: 4 less 5, or 4 less 4
    near = predict(words.replace("40", "8"), machine, both)
    assert "vm/nr_hugepages" in [one.subject for one in near.unjudged]


def test_there_is_room_for_one_pair_of_each_page_size_and_one_default(make_machine: MakeMachine) -> None:
    words = "hugepages=4 hugepagesz=2M hugepages=8 hugepagesz=1G hugepages=1 default_hugepagesz=1G"
    since, before = (predict(words, make_machine(version=version)) for version in ("6.15", "6.14"))
    dropped = "Malformed early option 'default_hugepagesz'"
    assert [dropped in [message.text for message in one.messages] for one in (since, before)] == [True, False]
    assert value(since, "meminfo/Hugepagesize") == Exactly(2 * MIB)
    assert value(before, "meminfo/Hugepagesize") == Exactly(GIB)


def test_known_issue_of_a_short_node(make_machine: MakeMachine) -> None:
    machine = make_machine(memory="4G,12G")
    assert Quirk.GIGANTIC_NODE_FALLBACK in possible_deviations("hugepagesz=1G hugepages=0:6", machine)
    assert Quirk.GIGANTIC_NODE_FALLBACK not in possible_deviations("hugepagesz=1G hugepages=1:1", machine)
    mended = make_machine(memory="4G,12G", version="6.14")
    assert Quirk.GIGANTIC_NODE_FALLBACK not in possible_deviations("hugepagesz=1G hugepages=0:6", mended)


def test_thp_anon_of_the_document(make_machine: MakeMachine) -> None:
    words = "thp_anon=16K-64K:always;128K,512K:inherit;256K:madvise;1M-2M:never"
    prediction = predict(words, make_machine(version="6.12"))
    policies = {16: "always", 32: "always", 64: "always", 128: "inherit", 256: "madvise", 512: "inherit", 2048: "never"}
    for kilobytes, policy in policies.items():
        assert value(prediction, f"transparent_hugepage/hugepages-{kilobytes}kB/enabled") == Exactly(policy)


@pytest.mark.parametrize(
    "text", ["32,64K", "64K-16K:always", "48K:always", "64K:maybe", "64K:always;", "4M:always", ""]
)
def test_bad_thp_anon_changes_nothing(make_machine: MakeMachine, text: str) -> None:
    prediction = predict(f"thp_anon={text}", make_machine(version="6.12"))
    assert value(prediction, "transparent_hugepage/hugepages-2048kB/enabled") == Exactly("inherit")
    assert value(prediction, "transparent_hugepage/hugepages-64kB/enabled") == Exactly("never")
    assert f"thp_anon={text}: error parsing string, ignoring setting" in [one.text for one in prediction.messages]


def test_a_parameter_that_the_kernel_does_not_know_is_left_open(make_machine: MakeMachine) -> None:
    prediction = predict("thp_anon=64K:always", make_machine(version="6.1"))
    assert [item.subject for item in prediction.unjudged] == ["thp_anon"]


def test_a_misspelt_parameter_is_remarked(make_machine: MakeMachine) -> None:
    (remark,) = predict("transparent_hugepages=never", make_machine()).remarks
    assert "transparent_hugepage=" in remark


@pytest.mark.parametrize(
    ("words", "memory", "pages"),
    [
        ("hugetlb_cma=2G hugetlb_cma_only=1 hugepagesz=1G hugepages=1", "8G", [1]),
        ("hugetlb_cma=2G hugetlb_cma_only=1 hugepagesz=1G hugepages=3", "8G", [2]),
        ("hugetlb_cma=2G hugetlb_cma_only=1 hugetlb_cma_only=n hugepagesz=1G hugepages=1", "8G", [0]),
        ("hugetlb_cma=2G hugetlb_cma_only hugepagesz=1G hugepages=1", "8G", [0]),
        ("hugetlb_cma_only=1 hugepagesz=1G hugepages=1", "8G", [1]),
        ("hugetlb_cma=0:1G,1:2G hugetlb_cma_only=1 hugepagesz=1G hugepages=0:2,1:1", "6G,6G", [1, 1]),
        ("hugetlb_cma=1:2G hugetlb_cma_only=1 hugepagesz=1G hugepages=2", "6G,6G", [0, 2]),
        ("hugetlb_cma=0:1G,1:2G hugetlb_cma_only=1 hugepagesz=1G hugepages=3", "6G,6G", [1, 2]),
    ],
)
def test_gigantic_pages_of_cma_areas(make_machine: MakeMachine, words: str, memory: str, pages: list[int]) -> None:
    prediction = predict(words, make_machine(memory=memory, version="7.3"))
    assert value(prediction, TOTAL_1G) == Exactly(sum(pages))
    assert [value(prediction, f"node{node}/{TOTAL_1G}") for node in range(len(pages))] == list(map(Exactly, pages))


def test_a_percentage_is_a_number_of_bytes_before_it_is_known(make_machine: MakeMachine) -> None:
    old = predict("hugetlb_cma=50% hugepagesz=1G hugepages=1", make_machine(version="7.2"))
    assert "hugetlb_cma: cma area must be a multiple of 1024 MiB" in [message.text for message in old.messages]


FORCE = frozenset({Quirk.SHMEM_FORCE_REFUSED})


@pytest.mark.parametrize(
    ("words", "found", "complaints"),
    [
        ("transparent_hugepage_shmem=force", None, 1),
        ("transparent_hugepage_shmem=always transparent_hugepage_shmem=force", "always", 1),
        ("thp_shmem=2M:inherit transparent_hugepage_shmem=force", "never", 0),
        ("transparent_hugepage_shmem=force thp_shmem=2M:inherit", None, 1),
        ("thp_shmem=64K,2M:inherit transparent_hugepage_shmem=force", None, 1),
        ("thp_shmem=64K,2M:inherit thp_shmem=64K:never transparent_hugepage_shmem=force", "never", 0),
        ("thp_shmem=2M:inherit transparent_hugepage_shmem=force transparent_hugepage_shmem=advise", "advise", 0),
    ],
)
def test_force_is_refused_or_lost(make_machine: MakeMachine, words: str, found: str | None, complaints: int) -> None:
    machine = make_machine(version="7.3")
    prediction = predict(words, machine, FORCE)
    subject = "transparent_hugepage/shmem_enabled"
    assert [one.expected for one in prediction.expectations if one.subject == subject] == (
        [Exactly(found)] if found else []
    )
    assert len(prediction.messages) == complaints
    assert possible_deviations(words, machine) == FORCE


@pytest.mark.parametrize(
    ("words", "version", "expected"),
    [
        ("thp_anon=2M:always transparent_hugepage=never", "6.12", "running"),
        ("thp_anon=64K:always transparent_hugepage=never", "6.12", None),
        ("thp_anon=64K:always transparent_hugepage=never", "7.2", "running"),
        ("thp_anon=64K:inherit transparent_hugepage=never", "7.3", "absent"),
        ("thp_anon=2M:never transparent_hugepage=always", "6.12", None),
        ("thp_anon=2M:never transparent_hugepage=always", "7.3", "running"),
        ("thp_anon=2M:never transparent_hugepage=never", "7.3", "absent"),
    ],
)
def test_khugepaged(make_machine: MakeMachine, words: str, version: str, expected: str | None) -> None:
    prediction = predict(words, make_machine(version=version))
    found = [one.expected for one in prediction.expectations if one.subject == "process/khugepaged"]
    assert found == ([Exactly(expected)] if expected else [])
