"""The rules that a machine cannot test: their cases were skipped on every page size."""

import re
from collections.abc import Iterable
from functools import cache

from hugepage_qa.cases.result import Verdict

_PAGE_SIZE_AND_CPU = re.compile(r"(?:/[0-9]+[KMG])?(?:@\w+)?$")


@cache
def rule_of(name: str) -> str:
    """Return the name of the case in that of a result, which may end with a page size and a CPU."""
    return _PAGE_SIZE_AND_CPU.sub("", name)


def untested_rules(results: Iterable[tuple[str, Verdict]]) -> tuple[str, ...]:
    """Return the rules of which no result, given with its name, is more than a skip."""
    tested: dict[str, bool] = {}
    for name, verdict in results:
        rule = rule_of(name)
        tested[rule] = tested.get(rule, False) or verdict is not Verdict.SKIP
    return tuple(rule for rule, is_tested in tested.items() if not is_tested)
