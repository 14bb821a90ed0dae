"""How often the gate is wrong on given data, in which nothing changed: by A/A splits and changes made on purpose.

A split takes some consecutive blocks of all series as the baseline and the blocks after them as new: the order in which
a gate meets them. Where series are too short for many such splits, blocks are drawn at random. All metrics are judged
together, as in a real run. A change is injected into the samples of the new blocks of one metric after the other, while
all others stay as they are; everything after that is the gate as it is. What is usually done is set against it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hugepage_gate.block_summary import SummarySeries, summarise
from hugepage_gate.comparison import run_verdict
from hugepage_gate.contrasts import Unit
from hugepage_gate.evidence import Family, learn_family, level_evidence, of_unknown_hosts, slow_evidence
from hugepage_gate.gate_policy import DEFAULT_TAIL_MARGIN
from hugepage_gate.looks import Decision, Evidence, PerLook, alarm_limits, decide_one, noise_alarms
from hugepage_gate.samples import Block, Direction, Kind, Samples, SampleSet, Series, Verdict
from hugepage_qa.errors import InputError

Change = Callable[[Samples, float, np.random.Generator], Samples]


@dataclass(frozen=True)
class Injection:
    """``change`` makes the samples of a block slower by ``size`` (a share), in its own way."""

    name: str
    size: float
    change: Change

    def apply(self, series: Series, random: np.random.Generator) -> Series:
        """Return ``series`` with all blocks changed for the worse."""
        return replace(series, blocks=tuple(self._block(block, series.direction, random) for block in series.blocks))

    def _block(self, block: Block, direction: Direction, random: np.random.Generator) -> Block:
        factor = self.change(np.ones(len(block.samples)), self.size, random)
        return replace(
            block, samples=block.samples / factor if direction is Direction.HIGHER else block.samples * factor
        )


def shift(samples: Samples, size: float, _random: np.random.Generator) -> Samples:
    """All samples are slower."""
    return samples * (1 + size)


def some_runs(share: float) -> Change:
    """Return the change that makes only the ``share`` of the runs slower, as when some do not get their huge pages."""

    def change(samples: Samples, size: float, random: np.random.Generator) -> Samples:
        return np.where(random.random(len(samples)) < share, samples * (1 + size), samples)

    return change


def injections(margin: float) -> tuple[Injection, ...]:
    """Return what is injected: shifts of all runs, also by ``margin`` (a share), and slow runs."""
    shifts = {f"+{share:.0%}": share for share in (0.01, 0.02, 0.05)}
    return (
        *(Injection(name, size, shift) for name, size in shifts.items()),
        Injection("margin", margin, shift),
        Injection(*SOME_RUNS, some_runs(0.3)),
        Injection(*FEW_RUNS, some_runs(0.1)),
    )


#: names and sizes of slow runs
SOME_RUNS, FEW_RUNS = ("30% of runs +30%", 0.3), ("10% of runs x2", 1.0)

_SIGNIFICANT = 0.05
_FIXED_THRESHOLD = 0.05
_FEWEST = 2

#: whether the second samples are taken for worse than the first, row by row; larger is worse
Rule = Callable[[Samples, Samples], NDArray[np.bool_]]


def mann_whitney(baseline: Samples, new: Samples) -> NDArray[np.bool_]:
    """Mann-Whitney, two-sided p < 0.05 (benchstat), and the median is worse."""
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - it takes a second, and the gate itself needs it not

    p = mannwhitneyu(baseline, new, method="asymptotic", axis=-1).pvalue
    return np.asarray((np.median(new, axis=-1) > np.median(baseline, axis=-1)) & (p < _SIGNIFICANT))


def welch(baseline: Samples, new: Samples) -> NDArray[np.bool_]:
    """Welch's t-test, two-sided p < 0.05, and the mean is worse."""
    from scipy.stats import ttest_ind  # noqa: PLC0415 - as above

    worse = new.mean(axis=-1) > baseline.mean(axis=-1)
    if min(baseline.shape[-1], new.shape[-1]) < _FEWEST:
        return np.zeros_like(worse)
    return np.asarray(worse & (ttest_ind(baseline, new, equal_var=False, axis=-1).pvalue < _SIGNIFICANT))


def fixed_threshold(baseline: Samples, new: Samples) -> NDArray[np.bool_]:
    """The mean is more than 5 % worse."""
    usual = baseline.mean(axis=-1)
    return np.asarray(new.mean(axis=-1) > usual + _FIXED_THRESHOLD * abs(usual))


USUAL_RULES: Mapping[str, Rule] = {"Mann-Whitney": mann_whitney, "Welch": welch, "fixed 5 %": fixed_threshold}


#: what nothing was injected into
UNCHANGED = "A/A"

_FEWEST_BASELINE = 2


@dataclass(frozen=True)
class Plan:
    """How to split: ``baseline`` blocks against up to ``new``, ``splits`` times, at ``margin`` (a share)."""

    baseline: int = 10
    new: int = 3
    splits: int = 20
    margin: float = 0.01
    seed: int = 1


@dataclass
class Rates:
    """How comparisons ended, by what was injected: counts of verdicts, blocks used, and what other rules say.

    ``runs`` are the verdicts on all metrics together, where nothing was injected.
    """

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    runs: Counter[Verdict] = field(default_factory=Counter)
    blocks_used: list[int] = field(default_factory=list)
    usual: dict[str, dict[str, list[bool]]] = field(default_factory=dict)

    def share(self, injected: str, *verdicts: Verdict) -> float:
        """Return the share of metrics with ``injected`` that ended with one of ``verdicts``; NaN without any."""
        return _share(self.verdicts.get(injected, Counter()), verdicts)

    def run_share(self, *verdicts: Verdict) -> float:
        """Return the share of unchanged runs that ended with one of ``verdicts``; NaN without any."""
        return _share(self.runs, verdicts)

    def usual_share(self, rule: str, injected: str) -> float:
        """Return the share of comparisons that ``rule`` takes for worse; NaN without any."""
        found = self.usual.get(rule, {}).get(injected, [])
        return sum(found) / len(found) if found else float("nan")


def _share(counts: Counter[Verdict], verdicts: Sequence[Verdict]) -> float:
    return sum(counts[one] for one in verdicts) / counts.total() if counts else float("nan")


def measure_rates(samples: SampleSet, plan: Plan) -> Rates:
    """Return how the gate does on ``samples``. Raises InputError where no metric has enough blocks for a split."""
    random = np.random.default_rng(plan.seed)
    rates = Rates()
    measured = [one for one in samples if one.kind is Kind.MEASURED]
    groups: dict[int, list[Series]] = {}
    for series in measured:
        kept = tuple(block for block in series.blocks if not block.warmup)
        groups.setdefault(len(kept), []).append(replace(series, blocks=kept))
    done = False
    for blocks, group in groups.items():
        prepared = _Prepared(group, plan, random, unknown_hosts=not samples.hosts)
        for baseline, new in _splits(blocks, plan, random):
            prepared.add_split(rates, baseline, new)
            done = True
    if not done:
        raise InputError(f"{samples.source}: expected a metric with at least {_FEWEST_BASELINE + 1} blocks")
    return rates


def _splits(blocks: int, plan: Plan, random: np.random.Generator) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the blocks of the baseline and the new ones: windows in time, and random ones where those are too few."""
    new = min(plan.new, blocks // 2)
    baseline = min(plan.baseline, blocks - new)
    if baseline < _FEWEST_BASELINE or new < 1:
        return
    starts = random.permutation(blocks - baseline - new + 1)[: plan.splits]
    for start in starts:
        yield list(range(start, start + baseline)), list(range(start + baseline, start + baseline + new))
    for _ in range(plan.splits - len(starts)):
        chosen = random.permutation(blocks)[: baseline + new].tolist()
        yield chosen[:baseline], chosen[baseline:]


class _Prepared:
    """Series of equal length in numbers, with nothing injected and with everything, computed once for all splits."""

    def __init__(
        self, group: Sequence[Series], plan: Plan, random: np.random.Generator, *, unknown_hosts: bool
    ) -> None:
        self._plan = plan
        self._unknown_hosts = unknown_hosts
        self._raw = group
        self._injections: tuple[Injection, ...] = injections(plan.margin)
        self._plain = [summarise(one, plan.margin, {}, None) for one in group]
        self._changed = {one.name: [one.apply(series, random) for series in group] for one in self._injections}
        self._summaries = {
            name: [summarise(one, plan.margin, {}, None) for one in series] for name, series in self._changed.items()
        }

    def add_split(self, rates: Rates, baseline: Sequence[int], new: Sequence[int]) -> None:
        """Add what every rule says about this split to ``rates``."""
        bases = [_chosen(one, baseline) for one in self._plain]
        family = learn_family(bases)
        run = _Run([self._asked(*pair, family) for pair in zip(bases, self._chosen_of(self._plain, new), strict=True)])
        unchanged = run.verdicts()
        rates.runs[run_verdict(unchanged)] += 1
        rates.blocks_used += run.blocks_used()
        rates.verdicts.setdefault(UNCHANGED, Counter()).update(unchanged)
        for name, summaries in self._summaries.items():
            pairs = zip(bases, self._chosen_of(summaries, new), strict=True)
            changed = [run.verdict_on(place, self._asked(*pair, family)) for place, pair in enumerate(pairs)]
            rates.verdicts.setdefault(name, Counter()).update(changed)
        self._add_usual(rates, baseline[-1], new[0])

    def _chosen_of(self, summaries: Sequence[SummarySeries], blocks: Sequence[int]) -> list[SummarySeries]:
        return [_chosen(one, blocks) for one in summaries]

    def _asked(self, baseline: SummarySeries, new: SummarySeries, family: Family) -> "_Asked":
        level = level_evidence(baseline, new, Unit.SESSION, self._plan.margin, family.level)
        slow = slow_evidence(baseline, new, Unit.SESSION, DEFAULT_TAIL_MARGIN, family.mean)
        return _Asked(*of_unknown_hosts(level, slow)) if self._unknown_hosts else _Asked(level, slow)

    def _add_usual(self, rates: Rates, baseline: int, new: int) -> None:
        for name, group in {UNCHANGED: list(self._raw), **self._changed}.items():
            pairs = [
                (_signed(plain, baseline), _signed(series, new)) for plain, series in zip(self._raw, group, strict=True)
            ]
            # all pairs of the same lengths at once: a test of a single one takes milliseconds
            for lengths in {(len(old), len(now)) for old, now in pairs}:
                alike = [pair for pair in pairs if (len(pair[0]), len(pair[1])) == lengths]
                sides = [np.array(side) for side in zip(*alike, strict=True)]
                for rule, judge in USUAL_RULES.items():
                    found = rates.usual.setdefault(rule, {}).setdefault(name, [])
                    found += judge(sides[0], sides[1]).tolist()


def _chosen(series: SummarySeries, blocks: Sequence[int]) -> SummarySeries:
    return replace(series, blocks=tuple(series.blocks[block] for block in blocks))


def _signed(series: Series, block: int) -> Samples:
    samples = series.blocks[block].samples
    return -samples if series.direction is Direction.HIGHER else samples


class _Asked(NamedTuple):
    """What is asked of one metric: whether its level is worse, and whether it has slow runs."""

    level: Evidence
    slow: Evidence


class _Run:
    """Metrics that are judged together. How likely noise alone alarms is computed once for all that is injected."""

    def __init__(self, metrics: Sequence[_Asked]) -> None:
        self._metrics = metrics
        self._chances = tuple([noise_alarms(one) for one in question] for question in zip(*metrics, strict=True))

    def verdicts(self) -> list[Verdict]:
        """Return the verdict on each metric."""
        limits = [alarm_limits(chances) for chances in self._chances]
        return [_verdict(one, limits) for one in self._metrics]

    def verdict_on(self, place: int, changed: _Asked) -> Verdict:
        """Return the verdict on the metric at ``place`` when it alone is as ``changed``."""
        limits = []
        for chances, evidence in zip(self._chances, changed, strict=True):
            limits.append(alarm_limits([*chances[:place], noise_alarms(evidence), *chances[place + 1 :]]))
        return _verdict(changed, limits)

    def blocks_used(self) -> list[int]:
        """Return for each metric how many blocks somebody needs who measures one by one until there is a verdict."""
        limits = alarm_limits(self._chances[0])
        return [_blocks_used(one.level, limits) for one in self._metrics]


def _verdict(metric: _Asked, limits: Sequence[PerLook]) -> Verdict:
    """Return the graver verdict on level and slow runs: an alarm of the latter that nothing confirms is open, too."""
    level, slow = (decide_one(*pair).verdict for pair in zip(metric, limits, strict=True))
    if Verdict.REGRESSED in (level, slow):
        return Verdict.REGRESSED
    return Verdict.UNDECIDED if slow is Verdict.UNDECIDED else level


def _blocks_used(evidence: Evidence, limits: PerLook) -> int:
    have = len(evidence.new)
    open_ends = (Verdict.UNDECIDED, Verdict.BLIND)
    for blocks in range(1, have + 1):
        decision: Decision = decide_one(evidence.first(blocks), limits)
        if decision.verdict not in open_ends:
            return blocks
    return have
