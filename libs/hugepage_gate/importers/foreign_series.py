"""What all importers share: where a file comes from, and its numbers as series, checked.

A file is one session: what a program measured one after another inside of it are samples of one block. Only where a
format says which of its numbers were taken by which start of a program they are several blocks, of one session.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from hugepage_gate.sample_format import direction_of
from hugepage_gate.samples import Block, Direction, Kind, SampleSet, Scalar, Series
from hugepage_qa.errors import InputError


@dataclass(frozen=True)
class CsvDefaults:
    """What all lines of a CSV file have in common that no column says."""

    metric: str = "value"
    unit: str = "s"
    #: empty: what the unit tells
    direction: str = ""
    reference: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where samples come from: facts that the importer adds to those in the file, and overrides them.

    ``session`` is what the file is a session of; empty: its name. ``csv`` and ``block_per_process`` (every process of
    pyperf is a block, not every file) say what these formats leave open.
    """

    suite: str = "default"
    environment: Mapping[str, Scalar] = field(default_factory=dict)
    subject: Mapping[str, Scalar] = field(default_factory=dict)
    configuration: str = ""
    session: str = ""
    csv: CsvDefaults = CsvDefaults()
    block_per_process: bool = False


@dataclass(frozen=True)
class ForeignSeries:
    """One metric as a foreign file has it: ``blocks`` are the numbers of each start of the program.

    Without ``direction`` the unit tells which values are good. ``same_as`` is the metric this one is computed from.
    ``starts`` are the times of the blocks, as far as they are known; ``are_sessions``: each block is a session.
    """

    metric: str
    unit: str
    blocks: Sequence[Sequence[float]]
    direction: Direction | None = None
    kind: Kind = Kind.MEASURED
    same_as: str | None = None
    starts: Sequence[datetime | None] = ()
    are_sessions: bool = False


_LONGEST_NAME = 200
_LARGEST = sys.float_info.max


def one_session(
    path: Path, origin: Origin, found: Sequence[ForeignSeries], facts: Mapping[str, Scalar] | None = None
) -> SampleSet:
    """Return what was ``found`` in the file ``path`` as one session; ``facts`` are what it tells about the machine.

    Raises InputError for numbers that are no times, rates or counts, and for a file without any.
    """
    if not found:
        raise InputError(f"{path}: no results of a benchmark")
    series = tuple(_series(one, path, origin) for one in found)
    return SampleSet(str(path), origin.suite, {**(facts or {}), **origin.environment}, origin.subject, series)


def _series(found: ForeignSeries, path: Path, origin: Origin) -> Series:
    # a command line as a name may be long, and have line ends
    name = " ".join(found.metric.split())[:_LONGEST_NAME]
    session = origin.session or name_sessions([path])[0]
    starts = [*found.starts, *[None] * len(found.blocks)]
    blocks = []
    for place, values in enumerate(found.blocks):
        if not len(values) or any(not 0 <= value <= _LARGEST for value in values):
            raise InputError(f"{path}: {name}: expected finite values of at least 0")
        of_session = f"{session}/{place}" if found.are_sessions else session
        blocks.append(Block(np.array(values, dtype=np.float64), place, starts[place], of_session))
    direction = found.direction or direction_of(found.unit)
    identity = name, found.unit, direction, found.kind, origin.configuration
    return Series(*identity, tuple(blocks), same_as=found.same_as)


def name_sessions(paths: Sequence[Path]) -> list[str]:
    """Return the names of the sessions that files stand for: programs write one file per session.

    Those of the same name in different folders are told apart by the folders.
    """
    names = [path.name.removesuffix(path.suffix if path.suffix in _ENDINGS else "") for path in paths]
    return [
        str(path.with_name(name)) if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)
    ]


_ENDINGS = frozenset({".json", ".txt", ".out", ".log", ".csv", ".xml"})
