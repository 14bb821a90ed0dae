"""The files of one side of a comparison, such as one per session: read, checked and joined."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hugepage_gate.environment import hard_keys
from hugepage_gate.input_file import read_json
from hugepage_gate.sample_format import check_series, parse_samples
from hugepage_gate.samples import SampleSet, Series, host_of, in_time
from hugepage_qa.errors import InputError


def read_samples(paths: Sequence[Path]) -> SampleSet:
    """Return the samples in all files of one side of a comparison.

    Raises InputError, which names the file, for anything that the format or common sense forbids.
    """
    return join(parse_samples(read_json(path), str(path)) for path in paths)


def read_one_machine(paths: Sequence[Path]) -> SampleSet:
    """Return the samples in all files, as ``read_samples``; raises InputError for those of several machines, too."""
    samples = read_samples(paths)
    if samples.mixed:
        raise InputError(
            f"{samples.source}: {', '.join(sorted(samples.mixed))} differ between files; expected one machine"
        )
    return samples


def join(sets: Iterable[SampleSet]) -> SampleSet:
    """Return one set with the blocks of all; hard facts that differ are ``mixed``, and make it comparable to nothing.

    Raises InputError where the sets are not of one suite and subject, or contradict each other.
    """
    first, *others = sets
    if not others:
        return first
    for other in others:
        for what in ("suite", "subject", "reference"):
            if (one := getattr(first, what)) != (two := getattr(other, what)):
                raise InputError(f"{other.source}: {what} {two}, but {first.source} has {one}; compare them separately")
    joined: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for series in (series for one in (first, *others) for series in _with_hosts(one)):
        joined[series.key].append(series)
    for several in joined.values():
        if len({(one.unit, one.direction, one.kind) for one in several}) > 1:
            raise InputError(f"{several[0].name}: expected one unit, direction and kind in all files")
    result = tuple(
        replace(several[0], blocks=in_time(block for one in several for block in one.blocks))
        for several in joined.values()
    )
    check_series(result, first.source)
    return replace(first, series=result, mixed=_mixed((first, *others)))


def _mixed(sets: Sequence[SampleSet]) -> frozenset[str]:
    machines = [hard_keys(one.environment) for one in sets]
    return frozenset(
        key
        for machine in machines
        for key in machine.keys() | machines[0].keys()
        if machine.get(key) != machines[0].get(key)
    )


def _with_hosts(samples: SampleSet) -> list[Series]:
    """Return the series with the file's host name in each block: joined, the files have no common one."""
    host = host_of(samples.environment)
    if host is None:
        return list(samples)
    return [
        replace(one, blocks=tuple(replace(block, host=block.host or host) for block in one.blocks)) for one in samples
    ]
