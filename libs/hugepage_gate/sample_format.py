"""The neutral sample format (``schemas/samples.json``): written, and checked for what no schema can say."""

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol

import numpy as np

from hugepage_gate.input_file import check_document
from hugepage_gate.samples import Block, Direction, Kind, Samples, SampleSet, Scalar, Series, in_time
from hugepage_qa.errors import InputError


class Origin(Protocol):
    """Where a block comes from, as ``Block`` has it."""

    @property
    def session(self) -> str | None:
        """What was measured in one go."""

    @property
    def order(self) -> int:
        """The place in its session."""

    @property
    def boot(self) -> str | None:
        """The boot of the machine."""


_TIMES = frozenset({"s", "sec", "secs", "seconds", "ms", "us", "µs", "ns", "min", "ns/op", "ms/op", "s/op", "us/op"})
_RATES = frozenset(
    {"tps", "qps", "iops", "ops/s", "req/s", "MB/s", "MiB/s", "GB/s", "GiB/s", "bit/s", "Gbits/sec", "Mbits/sec"}
)
_RATE = re.compile(
    r"(?i).*(/ ?s|/ ?sec|/ ?seconds?|/ ?min|\b[kmgt]?(io|t|q|r|f|p|b)ps|per.sec(ond)?|flops|\bmips)|hits?\b.*"
)
#: of these fewer are better, however many in a second
_HARM = re.compile(r"(?i)(errors?|miss|misses|faults?|fail|failures?|drops?|dropped|stalls?|timeouts?|waits?)\b.*")


def direction_of(unit: str) -> Direction:
    """Return which values of a metric in ``unit`` are good, where nobody says it: rates are better high."""
    return Direction.HIGHER if _RATE.fullmatch(unit) and not _HARM.fullmatch(unit) else Direction.LOWER


#: of amounts, costs and what is spent per operation fewer are better
_AMOUNT = re.compile(
    r"(?i)([kmgt]i?)?b(ytes?)?|(allocs?|pages|count|w|watts?|j|joules?|cycles)|\S+/(op|event|gib|mib|page)"
)


def tells_direction(unit: str) -> bool:
    """Return whether ``direction_of`` knows the unit, and does not fall back to low values as the good ones."""
    return unit in _TIMES or any(pattern.fullmatch(unit) for pattern in (_RATE, _HARM, _AMOUNT))


#: so many bits of two blocks never agree by chance; a few samples of a coarse clock may
_TELLING_BITS = 60
_SAMPLES_WEIGHED = 64


def digest(samples: Samples) -> str:
    """Return the sha256 of ``samples`` as little-endian 64-bit floating point numbers: the name of a raw file."""
    return hashlib.sha256(samples.astype("<f8").tobytes()).hexdigest()


def check_series(series: Sequence[Series], source: str) -> None:
    """Raise InputError for series that contradict themselves or each other."""
    seen: dict[tuple[str, str], Series] = {}
    by_metric: dict[str, Series] = {}
    for one in series:
        if one.key in seen:
            raise InputError(f"{source}: {one.name} is there twice; put its blocks into one series")
        seen[one.key] = one
        other = by_metric.setdefault(one.metric, one)
        if one.unit != other.unit:
            raise InputError(f"{source}: {one.metric} is in {other.unit} and in {one.unit}; expected one unit")
        if (one.direction, one.kind) != (other.direction, other.kind):
            raise InputError(f"{source}: {one.metric}: expected one direction and kind in all configurations")
        _check_direction(one, source)
        _check_blocks(one, source)


def is_telling(samples: Samples) -> bool:
    """Return whether no other block has just these samples by chance.

    Every distinct sample but one tells as many bits as there are steps of its last decimal between lowest and highest.
    """
    weighed = sorted(set(samples[:_SAMPLES_WEIGHED].tolist()))
    step = 10.0 ** min(_last_decimal(sample) for sample in weighed)
    return (len(weighed) - 1) * math.log2(1 + (weighed[-1] - weighed[0]) / step) > _TELLING_BITS


def are_one(block: Block, other: Origin) -> bool:
    """Return whether ``other``, which has the same samples as ``block``, is the same block once more.

    Few samples may agree by chance, but not at one place of a session.
    """
    is_same_place = block.session is not None and (block.session, block.order) == (other.session, other.order)
    return is_same_place or _is_copy(block, other)


def _is_copy(block: Block, other: Origin) -> bool:
    # an emulator that counts instructions repeats itself to the last one in another boot
    are_two_boots = block.boot is not None and other.boot is not None and block.boot != other.boot
    return is_telling(block.samples) and not are_two_boots


def _check_direction(series: Series, source: str) -> None:
    wrong = (series.unit in _TIMES and series.direction is Direction.HIGHER) or (
        series.unit in _RATES and series.direction is Direction.LOWER
    )
    if wrong:
        raise InputError(f"{source}: {series.name}: direction {series.direction} is wrong for the unit {series.unit}")
    if series.direction is Direction.EQUAL and series.kind is not Kind.COUNT:
        raise InputError(f"{source}: {series.name}: direction equal is for counts, expected lower or higher")


def _check_blocks(series: Series, source: str) -> None:
    seen: dict[str, list[Block]] = defaultdict(list)
    for block in series.blocks:
        others = seen[digest(block.samples)]
        if any(_place(block) == _place(other) or _is_copy(block, other) for other in others):
            raise InputError(f"{source}: {series.name}: block {block.order} is there twice; expected every block once")
        others.append(block)


def _place(block: Block) -> object:
    return block.started, block.session, block.order, block.host, block.boot


def _last_decimal(sample: float) -> int:
    """Return the power of ten of the last decimal of ``sample``: 12.34 -> -2, 1200.0 -> 0."""
    exponent = Decimal(repr(sample)).normalize().as_tuple().exponent
    return min(0, exponent) if isinstance(exponent, int) else 0


FORMAT = "hugepage-qa samples"
VERSION = 1

#: beyond this, and below its inverse, squares have no place in a floating point number
LARGEST = 1e100

_PER_SERIES = ("metric", "unit", "direction", "kind", "configuration", "same_as", "blocks")


def parse_samples(document: Any, source: str) -> SampleSet:
    """Return what ``document`` holds; ``source`` names it in errors. Raises InputError."""
    document = _with_series(document)
    numbers = _take_samples(document, source)
    check_document(document, source, FORMAT, VERSION, "samples")
    taken = iter(numbers)
    series = tuple(_series(one, taken, source) for one in document["series"])
    check_series(series, source)
    return SampleSet(
        source=source,
        suite=document.get("suite", "default"),
        environment=flatten(document["environment"], source),
        subject=flatten(document.get("subject", {}), source),
        series=series,
        reference=_reference(document.get("reference"), series, source),
    )


def format_samples(samples: SampleSet) -> str:
    """Return ``samples`` in the neutral format."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "suite": samples.suite,
        "environment": dict(samples.environment),
        "subject": dict(samples.subject),
        **({"reference": samples.reference} if samples.reference is not None else {}),
        "series": [_series_document(series) for series in samples],
    }
    return json.dumps(document, indent=None, allow_nan=False) + "\n"


def flatten(facts: Mapping[str, Any], source: str, prefix: str = "") -> dict[str, Scalar]:
    """Return nested facts with their keys joined by dots: ``{"cpu": {"cores": 8}}`` -> ``{"cpu.cores": 8}``.

    Raises InputError for two that get the same key.
    """
    flat: dict[str, Scalar] = {}
    for key, value in facts.items():
        inner = flatten(value, source, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        twice = sorted(inner.keys() & flat.keys())
        if twice:
            raise InputError(f"{source}: {twice[0]}: expected each fact once, nested or with dots in its key")
        flat |= inner
    return flat


def parse_time(text: str, source: str) -> datetime:
    """Return the time that ``text`` stands for, taken as UTC without a zone. Raises InputError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"{source}: time {text!r}: expected ISO 8601, such as 2026-01-31T12:00:00Z") from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _with_series(document: Any) -> Any:
    """Return a document about a single series, which may stand without ``series``, in the full form."""
    if not isinstance(document, dict) or "series" in document or "metric" not in document:
        return document
    rest = {key: value for key, value in document.items() if key not in _PER_SERIES}
    return {**rest, "series": [{key: document[key] for key in _PER_SERIES if key in document}]}


def _take_samples(document: Any, source: str) -> list[Samples]:
    """Take the samples of all blocks out of ``document`` as arrays: a schema would look at millions one by one."""
    taken = []
    for series in _members(document, "series"):
        for block in _members(series, "blocks"):
            if isinstance(block, dict) and isinstance(block.get("samples"), list) and block["samples"]:
                where = f"{source}: {series.get('metric', 'series')}, block {block.get('order', '')}".rstrip(", ")
                taken.append(_numbers(block["samples"], where))
                block["samples"] = [0]
    return taken


def _members(owner: Any, key: str) -> list[Any]:
    members = owner.get(key) if isinstance(owner, dict) else None
    return members if isinstance(members, list) else []


def _numbers(values: list[Any], where: str) -> Samples:
    kinds = set(map(type, values)) - {int, float}
    if kinds:
        raise InputError(f"{where}: expected numbers as samples, got {min(kind.__name__ for kind in kinds)}")
    try:
        numbers = np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise InputError(f"{where}: a sample is too large for a floating point number") from error
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: sample {int(np.argmin(np.isfinite(numbers))) + 1} is NaN or infinite")
    if (numbers > LARGEST).any() or ((numbers > 0) & (numbers < 1 / LARGEST)).any():
        raise InputError(f"{where}: expected samples between {1 / LARGEST:g} and {LARGEST:g}, or 0; is the unit right?")
    if (numbers < 0).any():
        raise InputError(
            f"{where}: sample {int(np.argmax(numbers < 0)) + 1} is negative; expected times, rates or counts"
        )
    return numbers


def _series(series: Mapping[str, Any], samples: Any, source: str) -> Series:
    name = series["metric"]
    blocks = []
    for block in series["blocks"]:
        started = block.get("started")
        time = None if started is None else parse_time(started, f"{source}: {name}")
        blocks.append(Block(**{**block, "samples": next(samples), "started": time}))
    kind, direction = Kind(series.get("kind", Kind.MEASURED)), Direction(series["direction"])
    identity = name, series["unit"], direction, kind, series.get("configuration", "")
    return Series(*identity, in_time(blocks), same_as=series.get("same_as"))


def _reference(reference: str | None, series: Sequence[Series], source: str) -> str | None:
    configurations = sorted({one.configuration for one in series})
    if reference is None and len(configurations) > 1:
        raise InputError(
            f'{source}: configurations {", ".join(configurations)}: say in "reference" which one is the usual'
        )
    if reference is not None and reference not in configurations:
        raise InputError(f"{source}: reference {reference!r} is none of the configurations {', '.join(configurations)}")
    return reference


def _series_document(series: Series) -> dict[str, Any]:
    return {
        "metric": series.metric,
        "unit": series.unit,
        "direction": series.direction.value,
        "kind": series.kind.value,
        **({"configuration": series.configuration} if series.configuration else {}),
        **({} if series.same_as is None else {"same_as": series.same_as}),
        "blocks": [_block_document(block) for block in series.blocks],
    }


def _block_document(block: Block) -> dict[str, Any]:
    facts = {
        **vars(block),
        "started": block.started and block.started.isoformat(),
        "warmup": block.warmup or None,
        "samples": block.samples.tolist(),
    }
    return {key: value for key, value in facts.items() if value is not None}
