"""Take blocks into the baseline: with a reason, and never in small steps downhill.

Blocks that pass against the baseline of today extend it; blocks that improved on it, or whose change somebody answers
for, start a new one. Before that, the baseline as it would be has to pass against the oldest one of the release: ten
steps of 0.4 % each pass one by one, but not all together. Who answers for a change leaves a file beside the baseline,
``<metric>.<date>-<commit>.ack.json``.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from hugepage_gate.baseline_file import Acceptance, Baseline
from hugepage_gate.baseline_store import BaselineStore, store_samples
from hugepage_gate.block_summary import BlockSummary, SummarySeries, summarise_set
from hugepage_gate.compare_suites import FEWEST_BLOCKS, FEWEST_BOOTS, check_against_baseline, margins
from hugepage_gate.contrasts import Unit
from hugepage_gate.evidence import level_evidence
from hugepage_gate.gate_policy import Policy, decide_count
from hugepage_gate.looks import Decision, decide
from hugepage_gate.moderated_t import NO_PRIOR
from hugepage_gate.samples import Kind, SampleSet, Series, Verdict
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError

FORMAT = "hugepage-qa acknowledgement"
VERSION = 1

_COMMIT_SHOWN = 12


_GOOD = frozenset({Verdict.PASS, Verdict.IMPROVED})


@dataclass(frozen=True)
class Request:
    """Who accepts, why, in which release; ``commit`` names a change whose cost is accepted with it."""

    by: str
    reason: str
    release: str
    on: date
    commit: str | None = None


@dataclass(frozen=True)
class Accepted:
    """A baseline as it will be written; ``change`` is what somebody answers for, as a share, None without."""

    baseline: Baseline
    blocks: int
    starts: bool
    change: float | None

    @property
    def is_thin(self) -> bool:
        """Whether the baseline is too small for a verdict yet."""
        blocks = self.baseline.current.blocks
        boots = {block.boot for block in blocks}
        return len(blocks) < FEWEST_BLOCKS or (None not in boots and len(boots) < FEWEST_BOOTS)


def accept(store: BaselineStore, samples: SampleSet, request: Request, policy: Policy) -> list[Accepted]:
    """Return the baselines with the blocks of ``samples`` in them, none written yet.

    Raises InputError for a missing reason, for blocks that are in a baseline already, and for a change for the worse
    that nobody answers for.
    """
    if not request.reason.strip():
        raise InputError("--reason: expected why this is the new baseline")
    summaries = summarise_set(samples, margins(samples, policy))
    return [_accept(store, samples, series, summaries[series.key], request, policy) for series in samples]


def write(
    store: BaselineStore, accepted: Collection[Accepted], samples: SampleSet, request: Request, raw: Path | None
) -> Iterator[Path]:
    """Write what was accepted, raw samples first, and yield each file. Raises OSError."""
    if raw is not None:
        for series in samples:
            for block in series.blocks:
                store_samples(raw, block.samples)
    for one in accepted:
        path = store.write(one.baseline)
        if one.change is not None and request.commit is not None:
            yield _write_acknowledgement(path, one.baseline, request, request.commit, one.change)
        yield path


def _write_acknowledgement(path: Path, baseline: Baseline, request: Request, commit: str, change: float) -> Path:
    """Write who answers for ``change`` (a share, + is worse) beside the baseline in ``path``, and return where."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "metric": baseline.series.metric,
        "configuration": baseline.series.configuration,
        "by": request.by,
        "on": request.on.isoformat(),
        "reason": request.reason,
        "commit": commit,
        "change": round(change, 6),
        # seals of the blocks that start the new baseline
        "blocks": baseline.acceptances[-1].blocks,
    }
    shown = "".join(letter for letter in commit if letter.isalnum())[:_COMMIT_SHOWN]
    beside = path.with_name(f"{path.stem}.{request.on.isoformat()}-{shown}.ack.json")
    write_durably(beside, f"{json.dumps(document, indent=1, sort_keys=True)}\n")
    return beside


def _accept(
    store: BaselineStore, samples: SampleSet, series: Series, new: SummarySeries, request: Request, policy: Policy
) -> Accepted:
    old = store.read(samples.environment, samples.suite, series)
    if old is None:
        return _extended(
            Baseline(samples.suite, samples.environment, replace(new, blocks=()), ()), new, request, starts=True
        )
    check_against_baseline(old.series, series, samples.source)
    today = _decide(old.current, new, policy)
    starts = today.verdict is Verdict.IMPROVED or request.commit is not None
    accepted = _extended(old, new, request, starts=starts)
    if request.commit is None:
        _check_against_oldest(old, accepted.baseline, request.release, policy, samples.source)
        return accepted
    # a count has no share by which it is worse
    return replace(accepted, change=today.looks[-1].change if today.looks else 0.0)


def _extended(old: Baseline, new: SummarySeries, request: Request, *, starts: bool) -> Accepted:
    series = replace(old.series, blocks=(*old.series.blocks, *new.blocks))
    seals = tuple(sorted(old.seal_of(block) for block in new.blocks))
    acceptance = Acceptance(
        request.by, request.on, request.reason.strip(), request.release, starts, seals, request.commit
    )
    acceptances = (*old.acceptances, acceptance)
    return Accepted(Baseline(old.suite, old.environment, series, acceptances), len(new.blocks), starts, None)


def _check_against_oldest(old: Baseline, accepted: Baseline, release: str, policy: Policy, source: str) -> None:
    """Raise InputError unless what is newer than the oldest baseline of ``release`` passes against it.

    What somebody answered for in between is the oldest from there on.
    """
    of_release = [one for one in old.acceptances if one.release == release]
    answered = [i for i, one in enumerate(of_release) if one.commit is not None]
    oldest = of_release[answered[-1] if answered else 0 :][:1] or list(old.current_acceptances[:1])
    base = replace(accepted.series, blocks=old.blocks_of(oldest))
    known = {accepted.seal_of(block) for block in base.blocks}
    newer = tuple(block for block in accepted.current.blocks if accepted.seal_of(block) not in known)
    # the newest ones: those in between, which were better, would hide how far it went
    newest = newer[-max(FEWEST_BLOCKS, len(accepted.acceptances[-1].blocks)) :]
    decision = _decide(base, replace(accepted.series, blocks=newest), policy)
    if decision.verdict not in _GOOD:
        raise InputError(
            f"{source}: {base.name}: {decision.verdict} against the oldest baseline of {release} ({decision.reason}); "
            "measure more blocks, or answer for the change with --acknowledge COMMIT"
        )


def _decide(baseline: SummarySeries, new: SummarySeries, policy: Policy) -> Decision:
    """Return the decision on the level of all ``new`` blocks in a single look, which may spend all of the error."""
    rules = policy.of(new.metric)
    if new.kind is Kind.COUNT:
        return decide_count(_locations(baseline.blocks), _locations(new.blocks), new.direction, rules.count)
    evidence = level_evidence(baseline, new, Unit.SESSION, rules.margin, NO_PRIOR)
    return decide([evidence], [(len(evidence.new), 1.0)])[0]


def _locations(blocks: Collection[BlockSummary]) -> list[float]:
    return [block.location for block in blocks]
