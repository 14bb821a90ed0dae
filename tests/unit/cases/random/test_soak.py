"""Races at random: what is drawn, and that each that was recorded passes, and fails when it is lied to."""

import gzip
import json
from functools import cache

import pytest
from tests.unit.cases.lies import fails_by, lied_to, one_page_more
from tests.unit.cases.random.record_soak import RECORD, SEEDS
from tests.unit.cases.recorded import Recorded
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.random.rivals import RIVALS, Kind
from hugepage_qa.cases.random.soak import SOAK, Race, draw_race, soak_case
from hugepage_qa.cases.result import Verdict
from hugepage_qa.process.actor_threads import Came
from hugepage_qa.sizes import MIB
from hugepage_qa.version import KernelVersion

EVERY = {kind: [name for name, rival in RIVALS.items() if kind in rival.kinds] for kind in Kind}
RACES = [draw_race(f"1/{number}", EVERY) for number in range(1, 2001)]
#: where a race that went wrong is told
_STOP = "stop "

of_each_seed = pytest.mark.parametrize("seed", SEEDS)


def test_the_same_name_draws_the_same_race() -> None:
    assert [draw_race(f"1/{number}", EVERY) for number in (1, 2, 3)] == RACES[:3]
    assert draw_race("2/1", EVERY) != RACES[0]


def test_each_rival_is_drawn_for_each_kind_that_it_is_for() -> None:
    drawn = {(race.kind, name) for race in RACES for name, *_part in race.parts}
    assert drawn == {(kind, name) for kind, names in EVERY.items() for name in names}


def test_every_race_has_threads_pages_and_rivals() -> None:
    for race in RACES:
        assert race.users > 0
        assert race.pages > 0
        assert race.parts
        assert all(0 <= first <= last <= 1024 for _name, first, last in race.parts)


def test_what_moves_is_not_cut_by_others() -> None:
    moved = [[RIVALS[name] for name, *_part in race.parts] for race in RACES if "move" in str(race)]
    assert moved
    assert not any(rival.cuts for rivals in moved for rival in rivals if any(one.moves for one in rivals))


def test_what_has_to_come_last_does() -> None:
    for race in RACES:
        order = [RIVALS[name].last for name, *_part in race.parts]
        assert order == sorted(order)


def test_threads_may_find_what_the_rivals_bring_and_no_more() -> None:
    def may_come(*names: str) -> Came:
        return Race(Kind.SHARED, 1, 1, tuple((name, 0, 1024) for name in names)).may_come

    assert may_come("fork") is Came.DONE
    assert may_come("punch", "protect") == Came.DONE | Came.GONE | Came.SIGSEGV
    assert not any(may_come(name) & (Came.WRONG | Came.STUCK) for name in RIVALS)


def test_what_spoils_a_kernel_is_not_drawn_there() -> None:
    def names(version: str, architecture: str) -> set[str]:
        return {name for name, rival in RIVALS.items() if rival.is_bearable(KernelVersion.parse(version), architecture)}

    assert set(RIVALS) - names("6.6", "x86_64") == {"discard-hugetlb"}
    assert set(RIVALS) - names("6.12.95", "x86_64") == {"fork"}
    assert set(RIVALS) - names("7.2.13", "ppc64le") == {"move-hugetlb-to-nodes"}


@cache
def recorded(seed: int) -> Recorded:
    records = json.loads(gzip.decompress(RECORD.read_bytes()))
    return Recorded(SOAK, soak_case(seed, 0), None, records[str(seed)])


@of_each_seed
def test_a_true_record_passes(seed: int) -> None:
    result = recorded(seed).replay()
    assert (result.verdict, result.reason) == (Verdict.PASS, "1 races")


@of_each_seed
def test_a_thread_that_finds_something_else_fails_and_is_told(seed: int) -> None:
    def lie(event: Event) -> Event:
        if event["operation"] != "request" or not event["arguments"][1].startswith(_STOP):
            return event
        ok, zero, threads = event["result"][0].split()
        # of the first thread, which uses the memory: the second of its five words is what came of it
        wrong = f"{threads[:16]}{Came.WRONG.value:02x}{threads[18:]}"
        return event | {"result": [f"{ok} {zero} {wrong}", None]}

    result, told = lied_to(recorded(seed), lie)
    assert told == 1
    assert result.verdict is Verdict.FAIL
    assert f"race 1 of seed {seed}, " in result.reason
    assert "expected Came(0), found Came.WRONG" in result.reason


@of_each_seed
@pytest.mark.parametrize("counter", ["nr_hugepages", "free_hugepages", "resv_hugepages"])
def test_a_page_that_is_missing_fails(seed: int, counter: str) -> None:
    assert fails_by(recorded(seed), one_page_more(counter, 2 * MIB))


@of_each_seed
def test_what_the_kernel_says_of_itself_fails(seed: int) -> None:
    def lie(event: Event) -> Event:
        if event["operation"] != "new_kernel_log":
            return event
        return event | {"result": ["BUG: Bad page state in process actor"]}

    result, _told = lied_to(recorded(seed), lie)
    assert result.verdict is Verdict.FAIL
    assert "BUG: Bad page state" in result.reason
