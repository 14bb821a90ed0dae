"""Baselines in a directory: ``<arch>/<env_id>/<suite>/<metric>[@configuration].json``.

Raw samples are kept outside of git: ``<directory>/<sha256>.f64.xz``, named by the digest that the block in the baseline
has; little-endian 64-bit floating point numbers, compressed by xz.
"""

import hashlib
import json
import lzma
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from hugepage_gate.baseline_file import Baseline, format_baseline, parse_baseline
from hugepage_gate.compare_suites import BaselineSet
from hugepage_gate.environment import FOLLOWS_SUBJECT, env_id, hard_keys
from hugepage_gate.evidence import learn_family
from hugepage_gate.input_file import read_text
from hugepage_gate.sample_format import digest
from hugepage_gate.samples import Samples, SampleSet, Scalar, Series
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import MIB

#: bytes; 20,000 blocks
LARGEST_BASELINE = 16 * MIB

_UNSAFE = re.compile(r"[^A-Za-z0-9._=+@-]")
_LONGEST_NAME = 120


class BaselineStore:
    """The baselines below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, environment: Mapping[str, Scalar], suite: str, metric: str, configuration: str) -> Path:
        """Return where the baseline of a metric is kept, or would be."""
        return self._directory(environment, suite) / _baseline_name(metric, configuration)

    def read(self, environment: Mapping[str, Scalar], suite: str, series: Series) -> Baseline | None:
        """Return the baseline of ``series``, None where there is none. Raises InputError for a damaged one."""
        path = self.path(environment, suite, series.metric, series.configuration)
        return read_baseline(path) if path.is_symlink() or path.exists() else None

    def write(self, baseline: Baseline) -> Path:
        """Write ``baseline``, whole or not at all, and return where. Raises OSError."""
        series = baseline.series
        path = self.path(baseline.environment, baseline.suite, series.metric, series.configuration)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, format_baseline(baseline))
        return path

    def baseline_for(self, samples: SampleSet, subject: str | None = None, waived: Collection[str] = ()) -> BaselineSet:
        """Return the baseline of the machine of ``samples``.

        Without one, that of the machine that is most alike, but for what is ``waived``: the comparison names what
        differs. Raises InputError where
        the suite has no baseline at all, or one is damaged.
        """
        directory = self._directory(samples.environment, samples.suite)
        if not directory.is_dir():
            directory = self._most_alike(samples, subject, waived)
        baselines = [read_baseline(path) for path in sorted(directory.glob("*.json")) if not is_acknowledgement(path)]
        current = {one.series.key: one.current for one in baselines}
        blocks = [block for one in current.values() for block in one.blocks]
        newest = max(blocks, key=lambda one: (one.started is not None, one.started), default=None)
        return BaselineSet(
            source=str(directory),
            environment=baselines[0].environment if baselines else samples.environment,
            subject={} if newest is None else newest.subject,
            series=current,
            family=learn_family(list(current.values())),
        )

    def carried_over(self, samples: SampleSet, series: Series, waived: Collection[str]) -> Baseline | None:
        """Return the baseline of a machine that differs in nothing but ``waived`` facts, as one of this machine.

        None where there is none. Raises InputError for a damaged one.
        """
        wanted = hard_keys(samples.environment)
        name = self.path(samples.environment, samples.suite, series.metric, series.configuration).name
        for path in sorted(self._root.glob(f"*/*/{file_name(samples.suite)}/{name}")):
            found = read_baseline(path)
            known = hard_keys(found.environment)
            if all(wanted.get(key) == known.get(key) for key in (wanted.keys() | known.keys()) - {*waived}):
                return replace(found, environment=samples.environment)
        return None

    def files(self) -> Iterator[Path]:
        """Yield all baseline files."""
        return (path for path in sorted(self._root.glob("*/*/*/*.json")) if not is_acknowledgement(path))

    def search(self, metric: str) -> Iterator[tuple[Path, Baseline]]:
        """Yield path and content of all baselines whose metric contains ``metric``. Raises InputError."""
        for path in self.files():
            text = read_text(path, LARGEST_BASELINE)
            # cheaper than to read it all; a metric stands in its file as it is written in JSON
            if json.dumps(metric, ensure_ascii=False)[1:-1] in text:
                baseline = _of_its_name(parse_baseline(text, path), path)
                if metric in baseline.series.metric:
                    yield path, baseline

    def _directory(self, environment: Mapping[str, Scalar], suite: str) -> Path:
        return self._root / file_name(str(environment["arch"])) / env_id(environment) / file_name(suite)

    def _most_alike(self, samples: SampleSet, subject: str | None, waived: Collection[str]) -> Path:
        follows = FOLLOWS_SUBJECT.get(subject or "", frozenset())
        wanted = hard_keys(samples.environment)
        candidates = []
        for directory in sorted(self._root.glob(f"*/*/{file_name(samples.suite)}")):
            first = next((path for path in sorted(directory.glob("*.json")) if not is_acknowledgement(path)), None)
            if first is not None:
                found = hard_keys(read_baseline(first).environment)
                keys = (wanted.keys() | found.keys()) - follows - {*waived}
                candidates.append((sum(wanted.get(key) != found.get(key) for key in keys), directory))
        if not candidates:
            raise InputError(f"{self._root}: no baseline of suite {samples.suite}; accept a first one with gate accept")
        return min(candidates)[1]


def read_baseline(path: Path) -> Baseline:
    """Return the baseline in the file ``path``. Raises InputError for what is missing or damaged."""
    if path.is_symlink():
        raise InputError(f"{path}: a link; expected the baseline itself, as acceptances would replace the link")
    return _of_its_name(parse_baseline(read_text(path, LARGEST_BASELINE), path), path)


def _of_its_name(baseline: Baseline, path: Path) -> Baseline:
    """Return ``baseline``; one that was copied would stand for another metric. Raises InputError for that."""
    series = baseline.series
    if path.name != _baseline_name(series.metric, series.configuration):
        raise InputError(f"{path}: holds {series.name}; expected the metric of its name, restore the file from git")
    return baseline


def _baseline_name(metric: str, configuration: str) -> str:
    return f"{file_name(f'{metric}@{configuration}' if configuration else metric)}.json"


def is_acknowledgement(path: Path) -> bool:
    """Return whether ``path`` is a change that somebody answers for, not a baseline."""
    return path.name.endswith(".ack.json")


def file_name(text: str) -> str:
    """Return ``text`` as the name of a file; what had to be changed is told apart by a hash."""
    safe = _UNSAFE.sub("_", text).lstrip(".")[:_LONGEST_NAME]
    # a metric of that name would be taken for an acknowledgement
    is_safe = safe == text and safe and not safe.endswith(".ack")
    return safe if is_safe else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def store_samples(directory: Path, samples: Samples) -> Path:
    """Keep ``samples`` in ``directory`` and return their file. Raises OSError."""
    path = directory / f"{digest(samples)}.f64.xz"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(path, lzma.compress(samples.astype("<f8").tobytes()))
    return path
