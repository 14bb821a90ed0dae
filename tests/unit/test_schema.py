"""A document that has passed its schema becomes a dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import Path

import pytest

from hugepage_qa.schema import build, find_violation


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    size: int
    colour: Colour | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    by_size: Mapping[int, str]
    path: Path
    on: date
    at: datetime | None
    fact: str | int | None
    words: Mapping[str, tuple[str, ...]]


DOCUMENT = {
    "format": "of no field",
    "name": "one",
    "parts": [{"size": 1, "colour": "red"}, {"size": 2}],
    "by_size": {"4096": "/huge"},
    "path": "/tmp",
    "on": "2026-02-01",
    "at": "2026-02-01T10:00:00+00:00",
    "fact": 7,
    "words": {"a": ["b", "c"]},
}


def test_every_field_has_its_type() -> None:
    assert build(Whole, DOCUMENT) == Whole(
        name="one",
        parts=(Part(1, Colour.RED), Part(2)),
        by_size={4096: "/huge"},
        path=Path("/tmp"),
        on=date(2026, 2, 1),
        at=datetime.fromisoformat("2026-02-01T10:00:00+00:00"),
        fact=7,
        words={"a": ("b", "c")},
    )


def test_null_stays_none() -> None:
    assert build(Whole, {**DOCUMENT, "at": None}).at is None


def test_a_field_that_is_needed_is_missed() -> None:
    with pytest.raises(TypeError, match="size"):
        build(Part, {"colour": "red"})


def test_what_is_no_date_is_refused() -> None:
    with pytest.raises(ValueError, match="soon"):
        build(Whole, {**DOCUMENT, "on": "soon"})


def test_a_line_end_behind_a_name_is_no_part_of_it() -> None:
    policy = {"metrics": [{"match": "walk", "margin": "1%"}]}
    assert find_violation(policy, "hugepage_gate", "policy") is None
    policy["metrics"][0]["margin"] = "1%\n"
    assert "does not match" in str(find_violation(policy, "hugepage_gate", "policy"))
