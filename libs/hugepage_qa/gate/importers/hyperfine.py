"""hyperfine's ``--export-json``: the times of every command, in seconds. A file is one session, and thus one block."""

from pathlib import Path

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.importers.origin import Origin, session_of
from hugepage_qa.gate.input_file import read_json
from hugepage_qa.gate.samples import Block, Direction, Kind, SampleSet, Series
from hugepage_qa.schema import find_violation

_LONGEST_NAME = 200


def read_hyperfine(path: Path, origin: Origin) -> SampleSet:
    """Return the commands in the file ``path``. Raises InputError."""
    document = read_json(path)
    violation = find_violation(document, "hugepage_qa.gate", "hyperfine")
    if violation is not None:
        raise InputError(f"{path}: expected what hyperfine --export-json writes: {violation}")
    series = []
    for order, result in enumerate(document["results"]):
        times = np.array(result["times"], dtype=np.float64)
        if not np.isfinite(times).all():
            raise InputError(f"{path}: {result['command']}: expected finite times")
        name = " ".join(result["command"].split())[:_LONGEST_NAME]
        block = Block(times, order, session=session_of(path))
        series.append(Series(name, "s", Direction.LOWER, Kind.MEASURED, origin.configuration, (block,)))
    return SampleSet(str(path), origin.suite, origin.environment, origin.subject, tuple(series))
