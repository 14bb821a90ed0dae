"""Machines that lie to a case, and to it alone: what the harness reads before and after it is true.

A case is worth something where lies make it fail by its own rule. A machine that tells everything twice, that refuses
nothing, or on which nothing ever happens, shows what a case would pass over.
"""

import itertools
import json
import re
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import FrameType
from typing import Any

from tests.unit.cases.recorded import Recorded, WithoutEvidence
from tests.unit.cases.transcript import Diverged, Event, Key

from hugepage_qa.cases.expectations import Failed
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.oracle.compare import Difference

Lie = Callable[[Event], Event]
Other = tuple[Event, Lie]
_Lines = tuple[tuple[str, int], ...]

COUNTERS = {
    "nr_hugepages": "HugePages_Total",
    "free_hugepages": "HugePages_Free",
    "resv_hugepages": "HugePages_Rsvd",
    "surplus_hugepages": "HugePages_Surp",
}
#: so many lies are told about answers that the same lines judge: a case that asks thousands of times does it in a loop,
#: and lies about all of them took half of the time of all unit tests
_TOLD_OF_ALIKE = 3
#: what ends a case
_ENDS = ("end", "exit", "unmount", "remove_directory", "remove_swap", "write")
#: the number of a line such as "Rss: 8 kB" or "thp_split_pmd 3", that of a whole file such as "2048kB", and each like
#: N0=5
_NUMBER = re.compile(r"^((?:[\w()]+:? +)?)(\d+)(?=\b|kB)|(=)(\d+)\b", re.MULTILINE)


class LyingMachine(WithoutEvidence):
    """A recorded machine that changes what it answers by ``lie`` while ``lies``; ``told`` counts the lies.

    A case that does something again, because it does not believe what it is told, is told the same again.
    """

    def __init__(self, events: list[Event], lie: Lie) -> None:
        self._lie = lie
        self.lies = False
        self.told = 0
        super().__init__(events, self._answer)

    def perform(self, operation: str, arguments: Any) -> Any:
        """Return what was recorded, or the lie. Raises Diverged for what was not recorded up to here."""
        try:
            return super().perform(operation, arguments)
        except Diverged:
            if self.lies and self.go_back(operation, arguments):
                return super().perform(operation, arguments)
            if self.lies or not self.told:
                raise
            # a case that was left early puts back something else
            return None if operation in _ENDS else self._at_last(operation, arguments)

    def _at_last(self, operation: str, arguments: Any) -> Any:
        asked = list(arguments)
        answer = self._last_event(operation, lambda one: one == asked)
        if answer is None and operation == "request":
            # a process that is started then is the last one that was, whichever was asked for the same
            answer = self._last_event(operation, lambda one: one[1:] == asked[1:])
        if answer is None:
            raise Diverged(f"{operation} {asked} was never recorded")
        return answer["result"]

    def _last_event(self, operation: str, is_asked: Callable[[list[Any]], bool]) -> Event | None:
        events = (one for one in reversed(self._events) if one["operation"] == operation)
        return next((one for one in events if is_asked(one["arguments"])), None)

    def _answer(self, event: Event) -> Event:
        answer = self._lie(event) if self.lies else event
        self.told += answer is not event and answer != event
        return answer


class _UpToTheFirst(list[Difference]):
    """Ends a case with the first difference that it finds: it has failed then, whatever comes behind that."""

    def append(self, difference: Difference) -> None:
        super().append(difference)
        raise Failed(difference)


def lied_to(recorded: Recorded, lie: Lie) -> tuple[Result, int]:
    """Return the verdict on a case that was told lies, and how many they were."""
    machine = LyingMachine(recorded.events, lie)

    def act(live: Live) -> None:
        live.differences = _UpToTheFirst()
        machine.lies = True
        try:
            recorded.case.act(live)
        finally:
            machine.lies = False
            live.differences = [*live.differences]

    return recorded.judge(machine, replace(recorded.case, act=act)), machine.told


def by_its_own_rule(recorded: Recorded, judgement: Result) -> bool:
    """Tell whether a case failed, and by its own rule: not by what every case demands, nor as an error."""
    return judgement.verdict is Verdict.FAIL and f"rule {recorded.case.rule.name}: " in judgement.reason


def fails_by(recorded: Recorded, lie: Lie) -> bool:
    """Tell whether a case that was told lies fails by its own rule; one that asked for none of them does not."""
    judgement, told = lied_to(recorded, lie)
    return bool(told) and by_its_own_rule(recorded, judgement)


def one_page_more(counter: str, size: int, operations: tuple[str, ...] = ("observe",)) -> Lie:
    """Return the lie of one page more in ``counter`` of a pool, in all places that show it, to ``operations``."""

    def lie(event: Event) -> Event:
        if event["operation"] not in operations or not event.get("result"):
            return event
        return event | {"result": _shift(event["arguments"][0], event["result"], counter, size)}

    return lie


def instead(event: Event, answer: Event) -> Lie:
    """Return the lie of ``answer`` instead of what one recorded ``event`` answers."""
    return lambda asked: answer if asked is event else asked


def _last_looks(recorded: Recorded) -> list[Event]:
    looks = (event for event in recorded.events if event["operation"] == "observe")
    return list({event["arguments"][0]: event for event in looks}.values())


def other_looks(recorded: Recorded, *, at_what_it_made: bool = False) -> Iterator[Lie]:
    """Yield lies on what the record of a case has looked at: other numbers, a file that is not there, or too many.

    There are lies of one more at each look, of more at each than at the one before, and at the last look alone. With
    ``at_what_it_made`` they are on what was looked at only when the case had made it, such as a process or a mount.
    """
    made = False
    there: set[str] = set()
    seen: dict[str, Event] = {}
    for event in recorded.events:
        made = made or event["operation"] in ("start_actor", "mount", "make_directory")
        if event["operation"] in ("observe", "names", "file_system"):
            look = json.dumps([event["operation"], event["arguments"]])
            seen.setdefault(look, event)
            if not made:
                there.add(look)
    for look, event in seen.items():
        if not (at_what_it_made and look in there):
            yield _at_each_look(event, growing=False)
            yield _at_each_look(event, growing=True)
    for event in [] if at_what_it_made else _last_looks(recorded):
        yield instead(event, event | {"result": _other_look("observe", event["result"], 1)})


def _at_each_look(first: Event, *, growing: bool) -> Lie:
    operation, arguments = first["operation"], first["arguments"]
    looks = itertools.count()

    def lie(event: Event) -> Event:
        if (event["operation"], event["arguments"]) != (operation, arguments):
            return event
        more = next(looks) if growing else 1
        return event | {"result": _other_look(operation, event["result"], more)} if more else event

    return lie


def _other_look(operation: str, seen: Any, more: int) -> Any:
    match operation:
        case "names":
            return seen[1::2]
        case "file_system":
            return [number + more for number in seen]
    return "1\n" if seen is None else _with_raised_numbers(seen, more)


# a case that waits looks at the same again and again
@lru_cache(maxsize=256)
def _with_raised_numbers(text: str, more: int) -> str:
    return _NUMBER.sub(partial(_raised, more), text)


def _raised(more: int, found: re.Match[str]) -> str:
    return f"{found[1] or found[3] or ''}{int(found[2] or found[4]) + more}"


def as_at_first(recorded: Recorded) -> Lie:
    """Return the lie of a machine on which nothing happens: what is judged is as it was when it was looked at first."""
    first: dict[str, Event] = {}

    def lie(event: Event) -> Event:
        if event["operation"] == "observe":
            return event | {"result": first[event["arguments"][0]]}
        return event

    for event in recorded.events:
        if event["operation"] in ("read", "observe"):
            first.setdefault(event["arguments"][0], event["result"])
    return lie


def other_answers(recorded: Recorded) -> Iterator[Other]:
    """Yield each answer that the kernel gave to what a case did, with the lie of another one."""
    for event in recorded.events:
        answer = _other_answer(event)
        if answer is not None:
            yield event, instead(event, answer)


def unlike_answers(recorded: Recorded) -> Iterator[Other]:
    """Yield those of ``other_answers`` that a case asks for by lines of their own, and some of those that are alike.

    Alike are answers of one kind that the same lines ask for with the same verb. They are taken from all of the case:
    the first one, the last one, and one between them.
    """
    told = [*other_answers(recorded)]
    answers = {id(event) for event, _lie in told}
    lines: dict[int, _Lines] = {}

    def look_back(event: Event) -> Event:
        if id(event) in answers:
            lines.setdefault(id(event), tuple(_lines_of_the_case()))
        return event

    lied_to(recorded, look_back)
    alike: dict[tuple[_Lines, Key], list[Other]] = defaultdict(list)
    for event, lie in told:
        if id(event) in lines:
            alike[lines[id(event)], _kind_of_answer(event)].append((event, lie))
    for others in alike.values():
        yield from _spread(others)


def _lines_of_the_case() -> Iterator[tuple[str, int]]:
    """Yield the lines that are being executed, from where the machine is asked to where a case begins."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) != (__file__, "act"):
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _kind_of_answer(event: Event) -> Key:
    if event["operation"] != "request":
        return event["operation"], event["arguments"][0]
    verb, *words = event["arguments"][1].split()
    return verb, *(words[:1] if verb == "call" else ()), event["result"][0].split()[0]


def _spread(others: Sequence[Other]) -> list[Other]:
    steps = min(len(others), _TOLD_OF_ALIKE) - 1
    return [others[step * (len(others) - 1) // max(steps, 1)] for step in range(steps + 1)]


def _other_answer(event: Event) -> Event | None:
    if event["operation"] in ("write", "mount", "make_directory") and "errno" in event:
        return {key: value for key, value in event.items() if key != "errno"} | {"result": None}
    if event["operation"] != "request" or "result" not in event:
        return None
    answer, child = event["result"]
    kind, *values = answer.split()
    verb, *words = event["arguments"][1].split()
    if (words[:1] == ["shmctl"] and words[2:3] == ["0"]) or verb == "fork":
        # removed after the case; whether it was gone before is judged by the pages that are left. And a fork that
        # was refused left no child to answer with
        return None
    if kind in ("errno", "signal"):
        # buffers come back as they were
        buffers = [word.removeprefix("x") for word in words if word.startswith("x")]
        return event | {"result": [" ".join(["ok", "0", *buffers]), child]}
    if words[:1] in (["statx"], ["fstatfs"]) or (words[:1] == ["shmctl"] and words[2:3] == ["2"]):
        # what they tell: the second is IPC_STAT
        *others, told = values
        wrong = bytes((byte + 1) % 256 for byte in bytes.fromhex(told)).hex()
        return event | {"result": [" ".join(["ok", *others, wrong]), child]}
    if words[:1] == ["ioctl"] and words[3:] == [_WHAT_IS_OFFERED]:
        # nothing is: the buffer comes back as it was
        return event | {"result": [f"ok 0 {_WHAT_IS_OFFERED.removeprefix('x')}", child]}
    other = _OTHER_VALUE.get(verb)
    return event | {"result": [other(*values), child]} if other else None


def _one_more(value: str, *_buffers: str) -> str:
    return f"ok {int(value) + 1}"


def _others_found(zero: str, repeated: str = "") -> str:
    # struct repeated of each thread: the second of its five words is what came of it, here WRONG
    threads = (repeated[at : at + 80] for at in range(0, len(repeated), 80))
    return f"ok {zero} {''.join(f'{one[:16]}0400000000000000{one[32:]}' for one in threads)}"


#: UFFDIO_API of who asks for no feature: struct uffdio_api
_WHAT_IS_OFFERED = f"x{struct.pack('<3Q', 0xAA, 0, 0).hex()}"
#: what else may be answered to a verb, by the value and the buffers of the true answer
_OTHER_VALUE: dict[str, Callable[..., str]] = {
    "load": _one_more,
    "check": _one_more,
    "run": _one_more,
    # in each round one more
    "race": lambda value: f"ok {int(value) << 1}",
    "attach": lambda value: f"ok {int(value) << 1}",
    # who came second found what nobody had stored
    "first": lambda rounds, came: f"ok {rounds} {int(came) | 4}",
    # a store that nobody is told of
    "soft-dirty": lambda lost, kept: f"ok {int(lost) + 1} {kept}",
    # each of the threads found what nobody had stored
    "clash": lambda rounds, came: f"ok {rounds} {'04' * (len(came) // 2)}",
    "stop": _others_found,
}


def _shift(path: str, text: str, counter: str, size: int) -> str:
    """Return ``text`` with one page more in ``counter``."""
    if path.endswith(f"hugepages-{size // 1024}kB/{counter}"):
        return f"{int(text) + 1}\n"
    if path == "proc/meminfo":
        if _is_default(text, size):
            text = _add(text, COUNTERS[counter], 1)
        if counter == "nr_hugepages":
            text = _add(text, "Hugetlb", size // 1024)
    return text


def _is_default(text: str, size: int) -> bool:
    found = re.search(r"Hugepagesize: +(\d+) kB", text)
    return found is not None and int(found[1]) * 1024 == size


def _add(text: str, line: str, amount: int) -> str:
    return re.sub(rf"^({line}: +)(\d+)", lambda found: f"{found[1]}{int(found[2]) + amount}", text, flags=re.MULTILINE)
