"""What no schema can say about samples: units that contradict the direction, blocks that are there twice."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal

from hugepage_qa.errors import InputError
from hugepage_qa.gate.samples import Block, Direction, Kind, Samples, Series

#: session and order of a block
Place = tuple[str | None, int]

_TIMES = frozenset({"s", "sec", "secs", "seconds", "ms", "us", "µs", "ns", "min", "ns/op", "ms/op", "s/op", "us/op"})
_RATES = frozenset(
    {"tps", "qps", "iops", "ops/s", "req/s", "MB/s", "MiB/s", "GB/s", "GiB/s", "bit/s", "Gbits/sec", "Mbits/sec"}
)

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


def check_disjoint(baseline: Mapping[str, Collection[Place]], series: Series, source: str) -> None:
    """Raise InputError when a block of ``series`` is among those of its baseline, given by digest and places."""
    for block in series.blocks:
        places = baseline.get(digest(block.samples), ())
        # few samples may agree by chance, but not in the same session
        is_same = block.session is not None and (block.session, block.order) in places
        if is_same or (places and is_telling(block.samples)):
            raise InputError(
                f"{source}: {series.name}, block {block.order} is in the baseline, too; expected new samples"
            )


def _check_direction(series: Series, source: str) -> None:
    wrong = (series.unit in _TIMES and series.direction is Direction.HIGHER) or (
        series.unit in _RATES and series.direction is Direction.LOWER
    )
    if wrong:
        raise InputError(f"{source}: {series.name}: direction {series.direction} is wrong for the unit {series.unit}")
    if series.direction is Direction.EQUAL and series.kind is not Kind.COUNT:
        raise InputError(f"{source}: {series.name}: direction equal is for counts, expected lower or higher")


def _check_blocks(series: Series, source: str) -> None:
    seen: dict[str, list[object]] = defaultdict(list)
    for block in series.blocks:
        places = seen[digest(block.samples)]
        # samples of a coarse clock may agree by chance, but not at the same place
        if _place(block) in places or (places and is_telling(block.samples)):
            raise InputError(f"{source}: {series.name}: block {block.order} is there twice; expected every block once")
        places.append(_place(block))


def _place(block: Block) -> object:
    return block.started, block.session, block.order, block.host, block.boot


def _last_decimal(sample: float) -> int:
    """Return the power of ten of the last decimal of ``sample``: 12.34 -> -2, 1200.0 -> 0."""
    exponent = Decimal(repr(sample)).normalize().as_tuple().exponent
    return min(0, exponent) if isinstance(exponent, int) else 0
