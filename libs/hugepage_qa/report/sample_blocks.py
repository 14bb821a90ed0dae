"""Samples that runs have measured, joined by the identity of their machine: what ``gate accept`` and ``compare`` take.

Blocks are joined where machine (``env_id``), suite and programs are the same: only these can become one baseline.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_gate.baseline_store import file_name
from hugepage_gate.environment import env_id
from hugepage_gate.input_file import read_json
from hugepage_gate.sample_files import join
from hugepage_gate.sample_format import format_samples, parse_samples
from hugepage_gate.samples import SampleSet
from hugepage_qa.report.merged_runs import SampleSummary

_HASH_DIGITS = 8


@dataclass(frozen=True)
class JoinedSamples:
    """The file of one machine, suite and subject, and what it holds."""

    summary: SampleSummary
    text: str


def join_sample_files(paths: Sequence[Path]) -> list[JoinedSamples]:
    """Return the samples in ``paths``, joined. Raises InputError for what is no sample file, later, or there twice."""
    groups: dict[tuple[str, str, str], list[SampleSet]] = defaultdict(list)
    for path in paths:
        samples = parse_samples(read_json(path), str(path))
        subject = json.dumps(dict(samples.subject), sort_keys=True)
        groups[env_id(samples.environment), samples.suite, subject].append(samples)
    return [_joined(identity, subject, join(sets)) for (identity, _suite, subject), sets in sorted(groups.items())]


def _joined(identity: str, subject: str, samples: SampleSet) -> JoinedSamples:
    architecture = str(samples.environment["arch"])
    digest = hashlib.sha256(subject.encode()).hexdigest()[:_HASH_DIGITS]
    name = f"{file_name(architecture)}/{identity}/{file_name(samples.suite)}-{digest}.json"
    sessions = {(block.session, block.started) for one in samples for block in one.blocks}
    summary = SampleSummary(
        file=f"samples/{name}",
        identity=identity,
        architecture=architecture,
        cpu_model=str(samples.environment["cpu_model"]),
        suite=samples.suite,
        subject={key: str(value) for key, value in samples.subject.items()},
        metrics=len({one.metric for one in samples}),
        blocks=min(len(one.blocks) for one in samples),
        sessions=len(sessions),
        hosts=tuple(sorted(samples.hosts)),
    )
    return JoinedSamples(summary, format_samples(samples))
