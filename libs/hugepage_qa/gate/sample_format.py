"""The neutral sample format (``schemas/samples.json``): checked and written."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.input_file import check_document
from hugepage_qa.gate.sample_checks import check_series
from hugepage_qa.gate.samples import Block, Direction, Kind, Samples, SampleSet, Scalar, Series, in_time

FORMAT = "hugepage-qa samples"
VERSION = 1

#: beyond this, and below its inverse, squares have no place in a floating point number
_LARGEST = 1e100

_PER_SERIES = ("metric", "unit", "direction", "kind", "configuration", "blocks")


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
        environment=flatten(document["environment"]),
        subject=flatten(document.get("subject", {})),
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


def flatten(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return nested facts with their keys joined by dots: ``{"cpu": {"cores": 8}}`` -> ``{"cpu.cores": 8}``."""
    flat: dict[str, Scalar] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
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
    if (numbers > _LARGEST).any() or ((numbers > 0) & (numbers < 1 / _LARGEST)).any():
        raise InputError(
            f"{where}: expected samples between {1 / _LARGEST:g} and {_LARGEST:g}, or 0; is the unit right?"
        )
    if (numbers < 0).any():
        raise InputError(
            f"{where}: sample {int(np.argmax(numbers < 0)) + 1} is negative; expected times, rates or counts"
        )
    return numbers


def _series(series: Mapping[str, Any], samples: Any, source: str) -> Series:
    name = series["metric"]
    return Series(
        metric=name,
        unit=series["unit"],
        direction=Direction(series["direction"]),
        kind=Kind(series.get("kind", Kind.MEASURED)),
        configuration=series.get("configuration", ""),
        blocks=in_time(_block(block, next(samples), f"{source}: {name}") for block in series["blocks"]),
    )


def _block(block: Mapping[str, Any], samples: Samples, where: str) -> Block:
    started = block.get("started")
    return Block(
        samples=samples,
        order=block["order"],
        started=None if started is None else parse_time(started, where),
        session=block.get("session"),
        boot=block.get("boot"),
        host=block.get("host"),
        sentinel=block.get("sentinel"),
        sentinel_after=block.get("sentinel_after"),
        warmup=block.get("warmup", False),
    )


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
        "blocks": [_block_document(block) for block in series.blocks],
    }


def _block_document(block: Block) -> dict[str, Any]:
    facts = {
        "started": block.started and block.started.isoformat(),
        "session": block.session,
        "boot": block.boot,
        "host": block.host,
        "sentinel": block.sentinel,
        "sentinel_after": block.sentinel_after,
        "warmup": block.warmup or None,
    }
    known = {key: value for key, value in facts.items() if value is not None}
    return {"order": block.order, **known, "samples": block.samples.tolist()}
