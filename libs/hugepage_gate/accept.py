"""Take blocks into the baseline: with a reason, metric by metric, and never in small steps downhill.

Blocks of which nothing shows that they are worse extend the baseline: also those of a metric that is too noisy to
pass, as a baseline of quiet nights alone would call every other night a regression. Blocks that improved on it, or
whose change somebody answers for, start a new one, which takes as many of them as a verdict does: until there are so
many the old one stays. What is worse is refused, also when it only got there in small steps since the oldest baseline
of the release: ten of 0.4 % each pass one by one, but not all together. Who answers for a change names its metrics, and
leaves a file beside the baseline, ``<metric>.<date>-<commit>.ack.json``.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from hugepage_gate.baseline_file import FEWEST_BLOCKS, Acceptance, Baseline, block_id, count_replicates
from hugepage_gate.baseline_store import BaselineStore, store_samples
from hugepage_gate.block_summary import BlockSummary, SummarySeries, summarise_set
from hugepage_gate.compare_suites import FEWEST_BOOTS, check_alike, margins
from hugepage_gate.contrasts import Unit
from hugepage_gate.evidence import count_evidence, level_evidence
from hugepage_gate.gate_policy import Policy, decide_count, noise_margin
from hugepage_gate.input_file import check_plain
from hugepage_gate.looks import Decision, Evidence, decide
from hugepage_gate.moderated_t import NO_PRIOR
from hugepage_gate.sample_format import are_one
from hugepage_gate.samples import Kind, SampleSet, Series, Verdict
from hugepage_qa.durable import write_durably
from hugepage_qa.errors import InputError

FORMAT = "hugepage-qa acknowledgement"
VERSION = 1

_COMMIT_SHOWN = 12


@dataclass(frozen=True)
class Request:
    """Who accepts, why, in which release.

    ``metrics`` are patterns of what is accepted; empty: everything. ``commit`` names a change whose cost is accepted
    with them. ``waivers`` are hard facts in which another machine may differ whose baseline is carried on, and why.
    """

    by: str
    reason: str
    release: str
    on: date
    commit: str | None = None
    metrics: tuple[str, ...] = ()
    waivers: Mapping[str, str] = field(default_factory=dict)

    def names(self, series: Series) -> bool:
        """Return whether ``series`` is among what is accepted."""
        return not self.metrics or any(fnmatchcase(name, one) for name in _names(series) for one in self.metrics)


def _names(series: Series) -> tuple[str, str]:
    return series.metric, series.name


class Outcome(StrEnum):
    """What became of the blocks of one metric."""

    STARTS = "starts a baseline"
    EXTENDS = "extends the baseline"
    KNOWN = "in the baseline already"
    #: not yet as many as a new baseline takes
    WAITS = "not accepted yet"
    REFUSED = "refused"


@dataclass(frozen=True)
class Accepted:
    """What became of one metric.

    ``baseline`` is what will be written, None for nothing; ``blocks`` are how many are new in it. ``change`` is what
    somebody answers for, as a share, None without.
    """

    name: str
    outcome: Outcome
    reason: str
    baseline: Baseline | None
    blocks: int = 0
    change: float | None = None

    @property
    def is_thin(self) -> bool:
        """Whether the baseline is too small for a verdict yet."""
        if self.baseline is None:
            return False
        current = self.baseline.current
        boots = {block.boot for block in current.blocks}
        return count_replicates(current) < FEWEST_BLOCKS or (None not in boots and len(boots) < FEWEST_BOOTS)


def accept(store: BaselineStore, samples: SampleSet, request: Request, policy: Policy) -> list[Accepted]:
    """Return what becomes of each metric of ``samples`` that is accepted, none written yet.

    Raises InputError for a missing reason, for a change that is answered for without naming its metrics, and for
    samples that contradict their baseline.
    """
    words = {"reason": request.reason, "by": request.by, "release": request.release, "acknowledge": request.commit}
    for option, text in words.items():
        if text is not None and not text.strip():
            raise InputError(f"--{option}: expected some text, got none")
    check_plain([request.by, request.reason, request.release, request.commit, *request.waivers.values()], "gate accept")
    if request.commit is not None and not request.metrics:
        raise InputError("--acknowledge: name what became worse with --metric; what is not named stays as it is")
    chosen = [series for series in samples if request.names(series)]
    if not chosen:
        raise InputError(f"--metric {', '.join(request.metrics)}: no metric of {samples.source} has such a name")
    summaries = summarise_set(samples, margins(samples, policy))
    return [_Metric(store, samples, series, request, policy).accept(summaries[series.key]) for series in chosen]


def write(
    store: BaselineStore, accepted: Collection[Accepted], samples: SampleSet, request: Request, raw: Path | None
) -> Iterator[Path]:
    """Write what was accepted, raw samples first, and yield each file. Raises OSError."""
    if raw is not None:
        for series in samples:
            for block in series.blocks:
                store_samples(raw, block.samples)
    for one in accepted:
        if one.baseline is not None:
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
        # names of the blocks that start the new baseline
        "blocks": baseline.acceptances[-1].blocks,
    }
    shown = "".join(letter for letter in commit if letter.isalnum())[:_COMMIT_SHOWN]
    beside = path.with_name(f"{path.stem}.{request.on.isoformat()}-{shown}.ack.json")
    write_durably(beside, f"{json.dumps(document, indent=1, sort_keys=True)}\n")
    return beside


@dataclass(frozen=True)
class _Metric:
    """One metric that somebody wants to be accepted."""

    store: BaselineStore
    samples: SampleSet
    series: Series
    request: Request
    policy: Policy

    def accept(self, new: SummarySeries) -> Accepted:
        """Return what becomes of ``new``."""
        old = self.store.read(self.samples.environment, self.samples.suite, self.series)
        carried = None
        if old is None:
            carried = old = self.store.carried_over(self.samples, self.series, self.request.waivers)
        if old is None:
            empty = Baseline(self.samples.suite, self.samples.environment, replace(new, blocks=()), ())
            first = self._joined(empty, new, starts=True)
            return Accepted(new.name, Outcome.STARTS, "the first one", first, len(new.blocks))
        check_alike(old.series, self.series, self.samples.source)
        new = _without_known(old, self.series, new)
        if not new.blocks:
            return Accepted(new.name, Outcome.KNOWN, "nothing new", carried)
        return self._judged(old, new, carried)

    def _judged(self, old: Baseline, new: SummarySeries, carried: Baseline | None) -> Accepted:
        """Return what becomes of blocks that are not in the baseline ``old``."""
        today = _decide(old.current, new, self.policy)
        is_answered_for = self.request.commit is not None and today.verdict is not Verdict.PASS
        if is_answered_for or (today.verdict is Verdict.IMPROVED and count_replicates(old.current) >= FEWEST_BLOCKS):
            missing = FEWEST_BLOCKS - count_replicates(new)
            if missing > 0:
                reason = (
                    f"{today.verdict}; a new baseline takes {FEWEST_BLOCKS} sessions: "
                    f"accept these again together with {missing} more"
                )
                return Accepted(new.name, Outcome.WAITS, reason, carried)
            # an exact count has no share by which it is worse
            change = (today.looks[-1].change if today.looks else 0.0) if is_answered_for else None
            started = self._joined(old, new, starts=True)
            return Accepted(new.name, Outcome.STARTS, today.reason, started, len(new.blocks), change)
        if _looks_worse(today):
            return Accepted(new.name, Outcome.REFUSED, f"{today.verdict}: {today.reason}; {_ADVICE}", carried)
        extended = self._joined(old, new, starts=False)
        crept = _against_oldest(old, extended, self.request.release, self.policy)
        if crept is not None and _looks_worse(crept):
            reason = f"{crept.verdict} against the oldest baseline of {self.request.release}: {crept.reason}; {_ADVICE}"
            return Accepted(new.name, Outcome.REFUSED, reason, carried)
        return Accepted(new.name, Outcome.EXTENDS, f"{today.verdict}: {today.reason}", extended, len(new.blocks))

    def _joined(self, old: Baseline, new: SummarySeries, *, starts: bool) -> Baseline:
        """Return ``old`` with the blocks of ``new``, which start another one or extend it."""
        request = self.request
        series = replace(old.series, blocks=(*old.series.blocks, *new.blocks))
        names = tuple(sorted(map(block_id, new.blocks)))
        why = "; ".join([request.reason.strip(), *(f"{key} waived: {one}" for key, one in request.waivers.items())])
        commit = request.commit if starts else None
        acceptance = Acceptance(request.by, request.on, why, request.release, starts, names, commit)
        return Baseline(old.suite, old.environment, series, (*old.acceptances, acceptance))


_ADVICE = "measure more blocks, or answer for the change with --acknowledge COMMIT --metric NAME"


def _without_known(old: Baseline, series: Series, new: SummarySeries) -> SummarySeries:
    """Return ``new`` without the blocks that were accepted before."""
    measured = [block for block in series.blocks if not block.warmup]
    known: dict[str, list[BlockSummary]] = {}
    for one in old.series.blocks:
        known.setdefault(one.sha256, []).append(one)
    pairs = zip(measured, new.blocks, strict=True)
    kept = (
        summary for block, summary in pairs if not any(are_one(block, one) for one in known.get(summary.sha256, ()))
    )
    return replace(new, blocks=tuple(kept))


def _against_oldest(old: Baseline, accepted: Baseline, release: str, policy: Policy) -> Decision | None:
    """Return how the newest blocks compare with the oldest baseline of ``release``; None where they are all of it.

    What somebody answered for in between is the oldest from there on.
    """
    of_release = [one for one in old.acceptances if one.release == release]
    answered = [i for i, one in enumerate(of_release) if one.commit is not None]
    oldest = of_release[answered[-1] if answered else 0 :][:1] or list(old.current_acceptances[:1])
    base = replace(accepted.series, blocks=old.blocks_of(oldest))
    known = set(map(block_id, base.blocks))
    newer = [block for block in accepted.current.blocks if block_id(block) not in known]
    # the newest ones: those in between, which were better, would hide how far it went
    newest = tuple(newer[-max(FEWEST_BLOCKS, len(accepted.acceptances[-1].blocks)) :])
    return _decide(base, replace(accepted.series, blocks=newest), policy) if base.blocks else None


def _looks_worse(decision: Decision) -> bool:
    """Return whether anything shows that it is worse, confirmed or not: exact counts have no looks."""
    alarmed = decision.looks[-1].alarm if decision.looks else decision.verdict is Verdict.UNDECIDED
    return decision.verdict is Verdict.REGRESSED or alarmed


def _decide(baseline: SummarySeries, new: SummarySeries, policy: Policy) -> Decision:
    """Return the decision on the level of all ``new`` blocks in a single look, which may spend all of the error."""
    rules = policy.of(new.metric)
    if new.kind is not Kind.COUNT:
        return _in_one_look(level_evidence(baseline, new, Unit.SESSION, rules.margin, NO_PRIOR))
    margin = noise_margin(baseline, rules)
    if margin is None:
        return decide_count(_locations(baseline.blocks), _locations(new.blocks), new.direction, rules.count)
    return _in_one_look(count_evidence(baseline, new, Unit.SESSION, margin))


def _in_one_look(evidence: Evidence) -> Decision:
    (decision,) = decide([evidence], [(len(evidence.new), 1.0)])
    if not decision.looks:
        return Decision(Verdict.PASS, "too few blocks to tell")
    return decision


def _locations(blocks: Collection[BlockSummary]) -> list[float]:
    return [block.location for block in blocks]
