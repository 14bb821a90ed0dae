"""The verdict on each metric: what is compared of it, the decision, and what keeps that from being a verdict."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hugepage_gate.block_summary import BlockSummary, SummarySeries
from hugepage_gate.comparison import (
    SLOW_RUNS,
    Interval,
    MetricResult,
    interval,
    interval_of,
    look_documents,
    worst_first,
)
from hugepage_gate.contrasts import Contrast, Unit, contrast_values, find_contrasts, is_balanced
from hugepage_gate.evidence import (
    Family,
    contrast_evidence,
    count_evidence,
    disturbed_blocks,
    level_evidence,
    of_unknown_hosts,
    slow_evidence,
)
from hugepage_gate.gate_policy import MetricPolicy, Policy, decide_count, noise_margin
from hugepage_gate.looks import ALARM_ERROR, Decision, Evidence, decide
from hugepage_gate.moderated_t import NO_PRIOR, estimate_mean
from hugepage_gate.samples import Kind, Samples, Verdict

Key = tuple[str, str]
Series = Mapping[Key, SummarySeries]
Doubt = Callable[[SummarySeries], tuple[Verdict, str] | None]


_NO_BASELINE = "no baseline: accept one with gate accept"
_NEW_METRIC = "not in the baseline, which is older than the metric: accept another one with gate accept"


@dataclass(frozen=True)
class _Question:
    """One estimand of one metric: the result without its verdict, the evidence, the series that it needs."""

    result: MetricResult
    evidence: Evidence | None
    baseline: tuple[SummarySeries, ...]
    new: tuple[SummarySeries, ...]
    decision: Decision | None = None
    contrast: Contrast | None = None

    @property
    def family(self) -> tuple[bool, bool]:
        """What shares the errors of a run: slow runs, and what is only reported, cost the others no power."""
        return self.result.estimand == SLOW_RUNS, self.result.gates


@dataclass
class MetricsJudge:
    """Judges all metrics of one comparison. ``doubt`` says what is wrong with a baseline, if anything."""

    baseline: Series
    new: Series
    reference: str | None
    family: Family
    unit: Unit
    policy: Policy
    looks: tuple[tuple[int, float], ...]
    doubt: Doubt
    unknown_hosts: bool = False
    _disturbed: set[object] = field(default_factory=set)

    def judge(self) -> tuple[MetricResult, ...]:
        """Return a result for every level and contrast, and for slow runs where there is an alarm, worst first.

        Raises InputError for values without a logarithm.
        """
        disturbed = disturbed_blocks(_each_once(self.baseline), _each_once(self.new))
        self._disturbed = {_session(block) for block in disturbed}
        questions = [question for key in self.new for question in self._questions(key)]
        metrics = dict.fromkeys(metric for metric, _ in self.new)
        contrasts = [(metric, one) for metric in metrics for one in self._contrasts(metric)]
        questions += [self._contrast(one, metric, ALARM_ERROR / len(contrasts)) for metric, one in contrasts]
        for family in {one.family for one in questions}:
            chosen = [i for i, one in enumerate(questions) if one.evidence is not None and one.family == family]
            decisions = decide([one for i in chosen if (one := questions[i].evidence) is not None], self.looks)
            for i, decision in zip(chosen, decisions, strict=True):
                questions[i] = replace(questions[i], decision=decision)
        return worst_first(_telling([self._answer(question) for question in questions]))

    def _questions(self, key: Key) -> Iterator[_Question]:
        new, baseline = self.new[key], self.baseline.get(key)
        policy = self.policy.of(new.metric)
        empty = self._empty(new, "level", policy.margin)
        if baseline is None or not baseline.blocks:
            reason = _NO_BASELINE if empty.gates else _NEW_METRIC
            yield _Question(empty, None, (), (new,), Decision(Verdict.UNDECIDED, reason))
            return
        sides = (baseline,), (new,)
        if new.kind is Kind.COUNT:
            yield self._count(empty, baseline, new, policy)
            return
        level = level_evidence(baseline, new, self.unit, policy.margin, self.family.level)
        slow = slow_evidence(baseline, new, self.unit, policy.tail_margin, self.family.mean)
        if self.unknown_hosts:
            level, slow = of_unknown_hosts(level, slow)
        yield _Question(empty, level, *sides)
        yield _Question(replace(empty, estimand=SLOW_RUNS, margin=policy.tail_margin), slow, *sides)

    def _count(
        self, empty: MetricResult, baseline: SummarySeries, new: SummarySeries, policy: MetricPolicy
    ) -> _Question:
        margin = noise_margin(baseline, policy)
        if margin is None:
            old, now = ([block.location for block in one.blocks] for one in (baseline, new))
            decision = decide_count(old, now, new.direction, policy.count)
            return _Question(empty, None, (baseline,), (new,), decision)
        evidence = count_evidence(baseline, new, self.unit, margin)
        return _Question(replace(empty, margin=margin), evidence, (baseline,), (new,))

    def _empty(self, series: SummarySeries, estimand: str, margin: float) -> MetricResult:
        """Return the result on ``series`` without its verdict.

        A metric that the workload has only had since the baseline was accepted has no say: the others are judged as
        before. What is computed from another metric says nothing of its own.
        """
        unsteady = sum(not block.is_steady for block in series.blocks)
        notes = [f"{unsteady} of {len(series.blocks)} blocks have no steady state"] if unsteady else []
        gates = self.policy.of(series.metric).gates
        gates = gates and (not self.baseline or any(name == series.metric for name, _ in self.baseline))
        if series.same_as is not None and (series.same_as, series.configuration) in self.new:
            gates = False
            notes.append(f"the same measurement as {series.same_as}, which counts")
        return MetricResult(
            metric=series.metric,
            configuration=series.configuration,
            estimand=estimand,
            unit=series.unit,
            direction=series.direction,
            verdict=Verdict.UNDECIDED,
            reason="",
            gates=gates,
            margin=margin,
            baseline_blocks=0,
            new_blocks=len(series.blocks),
            samples=sum(block.samples for block in series.blocks),
            effective=sum(block.effective for block in series.blocks),
            levels=(None, _level(series)) if estimand == "level" else (None, None),
            notes=tuple(notes),
        )

    def _new_of(self, metric: str) -> Mapping[str, SummarySeries]:
        return {configuration: one for (name, configuration), one in self.new.items() if name == metric}

    def _contrasts(self, metric: str) -> list[Contrast]:
        new = self._new_of(metric)
        if any(one.kind is Kind.COUNT for one in new.values()):
            return []
        return find_contrasts(list(new), self.reference)

    def _contrast(self, contrast: Contrast, metric: str, error: float) -> _Question:
        """Return the question on ``contrast``; ``error`` is the allowed share of claims that are wrong."""
        new = self._new_of(metric)
        any_series = next(iter(new.values()))
        policy = self.policy.of(any_series.metric)
        empty = self._empty(any_series, contrast.estimand, policy.margin)
        parts = tuple(new[name] for name in contrast.weights)
        values = contrast_values(contrast, new, self.unit)
        claim, claimed = _claim(values, policy.margin, error)
        empty = replace(empty, configuration=contrast.name, new_blocks=len(values), claim=claim, claimed=claimed)
        if not is_balanced(contrast, new):
            reason = "not interleaved: a drift would count as an advantage; measure in ABBA order"
            return _Question(empty, None, (), parts, Decision(Verdict.UNDECIDED, reason))
        baseline = {name: one for name in contrast.weights if (one := self.baseline.get((any_series.metric, name)))}
        if len(baseline) < len(contrast.weights):
            reason = "no baseline of all configurations: accept one with gate accept" if empty.gates else _NEW_METRIC
            return _Question(empty, None, (), parts, Decision(Verdict.UNDECIDED, reason))
        evidence = contrast_evidence(contrast, baseline, new, self.unit, policy.margin)
        return _Question(empty, evidence, tuple(baseline.values()), parts, contrast=contrast)

    def _answer(self, question: _Question) -> MetricResult:
        decision = question.decision or Decision(Verdict.UNDECIDED, "nothing to compare")
        result, evidence = question.result, question.evidence
        verdict, reason = self._obstacle(question) or _merited(question, decision)
        result = replace(result, verdict=verdict, reason=reason)
        result = replace(result, more_blocks=decision.more_blocks, more_baseline=decision.more_baseline)
        if evidence is not None:
            result = replace(result, baseline_blocks=len(evidence.baseline), new_blocks=len(evidence.new))
        elif question.baseline:
            result = replace(result, baseline_blocks=len(question.baseline[0].blocks))
        if result.estimand == "level" and question.baseline:
            result = replace(result, levels=(_level(question.baseline[0]), result.levels[1]))
        if decision.looks:
            latest = decision.looks[-1]
            sees = interval(latest.sees, 0, 0).estimate
            change, looks = interval_of(latest), look_documents(decision)
            result = replace(result, change=change, p=latest.p, limit=latest.limit, sees=sees, looks=looks)
        return result

    def _obstacle(self, question: _Question) -> tuple[Verdict, str] | None:
        """Return what keeps the decision from being a verdict."""
        for series in question.baseline:
            doubt = self.doubt(series)
            if doubt is not None:
                return doubt
        # a count is what it is, however fast it came about
        blocks = [block for series in question.new if series.kind is not Kind.COUNT for block in series.blocks]
        disturbed = sorted({str(block.order) for block in blocks if _session(block) in self._disturbed})
        if disturbed:
            return Verdict.DISTURBED, f"the sentinel left its range at block {', '.join(disturbed)}: measure again"
        for side, name in ((question.baseline, "baseline"), (question.new, "new")):
            if any(sum(not block.is_steady for block in one.blocks) * 2 > len(one.blocks) for one in side):
                reason = f"no steady state: most {name} blocks have no level that lasts half of the run"
                return Verdict.UNDECIDED, reason
        return None


def _merited(question: _Question, decision: Decision) -> tuple[Verdict, str]:
    """Return verdict and reason; an advantage that grew because what it is set against got worse is none."""
    contrast = question.contrast
    if contrast is None or decision.verdict is not Verdict.IMPROVED:
        return decision.verdict, decision.reason
    levels = zip(contrast.weights.values(), question.baseline, question.new, strict=True)
    own = sum(weight * (_mean_log(new) - _mean_log(old)) for weight, old, new in levels if weight > 0)
    if own > decision.looks[-1].estimate.difference / 2:
        return Verdict.PASS, "larger, but because what it is set against got worse"
    return decision.verdict, decision.reason


def _telling(results: list[MetricResult]) -> list[MetricResult]:
    """Return ``results`` without slow runs of which there is no alarm, or whose level tells of it already."""
    levels = [one for one in results if one.estimand == "level"]
    worse = {(one.metric, one.configuration) for one in levels if one.verdict is Verdict.REGRESSED}
    return [
        one
        for one in results
        if one.estimand != SLOW_RUNS
        or (
            one.verdict in (Verdict.REGRESSED, Verdict.UNDECIDED)
            and any(look["alarm"] for look in one.looks[-1:])
            and (one.metric, one.configuration) not in worse
        )
    ]


def _level(series: SummarySeries) -> float | None:
    return float(np.median([block.location for block in series.blocks])) if series.blocks else None


def _mean_log(series: SummarySeries) -> float:
    return series.worse * float(np.mean(np.log([block.location for block in series.blocks])))


def _claim(values: Samples, margin: float, error: float) -> tuple[str, Interval | None]:
    """Return whether the new blocks alone show that a contrast is better, or worse, than nothing.

    There is no baseline that an alarm would rest on: all contrasts of a comparison share the error (Bonferroni).
    """
    found = estimate_mean(values, NO_PRIOR, (margin / 100) ** 2)
    if found is None:
        return "unknown", None
    lower, upper = found.lower(error), found.upper(error)
    claim = "better" if upper < 0 else "worse" if lower > 0 else "unknown"
    return claim, interval(found.difference, lower, upper)


def _each_once(series: Series) -> list[BlockSummary]:
    """Return the blocks of all configurations, each once, however many metrics were taken in it.

    The sentinel is the same program beside all of them, and one session in a hundred is to be called disturbed by
    chance, not one series.
    """
    blocks = [(one.configuration, block) for one in series.values() for block in one.blocks]
    return list({(configuration, _session(block), block.order): block for configuration, block in blocks}.values())


def _session(block: BlockSummary) -> object:
    return (block.host, block.session) if block.session is not None else (block.host, block.started, block.order)
