"""What the tests of other suites check, and which cases see the same: docs/coverage has a file for each suite.

A test is covered where a case provokes the same, and would fail by each bug that makes the test fail.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from hugepage_qa.catalogue.pages import without_markup
from hugepage_qa.errors import InputError
from hugepage_qa.schema import build, find_violation


class Kind(StrEnum):
    """Whether a bug that a test of another suite finds is found by our cases."""

    COVERED = "covered"
    #: cases are about the same, and some bug could pass them
    WEAKER = "weaker"
    MISSING = "missing"
    #: no matter of this suite
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class PeerTest:
    """A test of another suite: what it ``checks``, our ``cases`` on that, and what keeps it from being covered."""

    checks: str
    cases: tuple[str, ...] = ()
    weaker: str = ""
    missing: str = ""
    left_out: str = ""

    @property
    def kind(self) -> Kind:
        """Covered, or the first that there is a reason for."""
        reasons = {Kind.WEAKER: self.weaker, Kind.MISSING: self.missing, Kind.LEFT_OUT: self.left_out}
        return next((kind for kind, reason in reasons.items() if reason), Kind.COVERED)

    @property
    def reason(self) -> str:
        """Why it is not covered."""
        return self.weaker or self.missing or self.left_out


@dataclass(frozen=True)
class Peer:
    """Another suite, and its tests by the names that they have there."""

    peer: str
    tests: Mapping[str, PeerTest]


def read_peers(directory: Path) -> list[Peer]:
    """Return the suites below ``directory``, those with most tests first. Raises InputError."""
    peers = [read_peer(file) for file in sorted(directory.glob("*.yaml"))]
    return sorted(peers, key=lambda peer: -len(peer.tests))


def read_peer(file: Path) -> Peer:
    """Return the suite in ``file``. Raises InputError where it cannot be read, or a test is of no kind, or of two."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    violation = find_violation(document, __package__, "coverage")
    if violation:
        raise InputError(f"{file}: {violation}")
    return build(Peer, document)


def render_counts(peers: Sequence[Peer]) -> Iterator[str]:
    """Yield the lines of the table of how many tests of each suite, and of all of them, are of each kind."""
    yield from _head("suite", "tests", *Kind)
    for peer in peers:
        yield _counts(peer.peer, peer.tests.values())
    yield _counts("all", [test for peer in peers for test in peer.tests.values()])


def render_tests(peer: Peer) -> Iterator[str]:
    """Yield the lines of the table of the tests of a suite, with links to the cases."""
    yield from _head("test", "checks", "here", "cases, and what they leave open")
    for name, test in peer.tests.items():
        told = ", ".join(map(_link, test.cases)), without_markup(test.reason)
        yield _row(without_markup(name), without_markup(test.checks), test.kind, ": ".join(filter(None, told)))


def _counts(title: str, tests: Iterable[PeerTest]) -> str:
    kinds = [test.kind for test in tests]
    return _row(title, len(kinds), *(kinds.count(kind) for kind in Kind))


def _head(*titles: str) -> Iterator[str]:
    yield from (_row(*titles), "|---" * len(titles) + "|")


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _link(case: str) -> str:
    if not case.startswith("/tests/"):
        return f"{{qa:case}}`{case}`"
    # a test that is one case itself is a heading on the page of its area
    return f"[`{case}`](cases/{case.split('/')[2]}.md#{case.replace('/', '')})"
