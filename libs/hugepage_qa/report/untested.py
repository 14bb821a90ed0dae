"""The rules that a machine cannot test: their cases were skipped on every page size."""

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from hugepage_qa.cases.result import Verdict

_NAME = re.compile(r"(?P<rule>.*?)(?:/(?P<size>[0-9]+[KMG]))?(?:@(?P<cpu>\w+))?", re.DOTALL)


class NameParts(NamedTuple):
    """The parts of the name of a result: its case, and the page size and the CPU, which can be empty."""

    rule: str
    size: str
    cpu: str


@cache
def name_parts(name: str) -> NameParts:
    """Return the parts of the name of a result."""
    match = _NAME.fullmatch(name)
    return NameParts(*(match.groups("") if match else (name, "", "")))


def rule_of(name: str) -> str:
    """Return the name of the case in that of a result, which may end with a page size and a CPU."""
    return name_parts(name).rule


def untested_rules(results: Iterable[tuple[str, Verdict]]) -> tuple[str, ...]:
    """Return the rules of which no result, given with its name, is more than a skip."""
    tested: dict[str, bool] = {}
    for name, verdict in results:
        rule = rule_of(name)
        tested[rule] = tested.get(rule, False) or verdict is not Verdict.SKIP
    return tuple(rule for rule, is_tested in tested.items() if not is_tested)
