"""How often the gate is wrong on given data, in which nothing changed: by A/A splits and changes made on purpose.

A split takes some consecutive blocks of a series as the baseline and the blocks after them as new: the order in which a
gate meets them. Where a series is too short for many such splits, blocks are drawn at random. The changes are injected
into the samples of the new blocks; everything after that is the gate as it is. What is usually done is set against it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hugepage_gate.block_summary import SummarySeries, summarise
from hugepage_gate.contrasts import Unit
from hugepage_gate.evidence import Family, learn_family, level_evidence, tail_evidence
from hugepage_gate.gate_policy import DEFAULT_TAIL_MARGIN
from hugepage_gate.looks import Evidence, decide
from hugepage_gate.moderated_t import Prior
from hugepage_gate.samples import Block, Direction, Kind, Samples, SampleSet, Series, Verdict
from hugepage_qa.errors import InputError

#: share of the samples that a tail or a second mode gets
_TAIL_SHARE = 0.03
_MODE_SHARE = 0.3

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


def tail(samples: Samples, size: float, random: np.random.Generator) -> Samples:
    """Three of a hundred samples are slower."""
    return np.where(random.random(len(samples)) < _TAIL_SHARE, samples * (1 + size), samples)


def bimodal(samples: Samples, size: float, random: np.random.Generator) -> Samples:
    """Three of ten samples are slower: a second mode."""
    return np.where(random.random(len(samples)) < _MODE_SHARE, samples * (1 + size), samples)


def injections(margin: float) -> tuple[Injection, ...]:
    """Return what is injected: shifts around and at ``margin`` (a share), a tail, a second mode."""
    shifts = {f"+{share:.0%}": share for share in (0.01, 0.02, 0.05)}
    return (
        *(Injection(name, size, shift) for name, size in shifts.items()),
        Injection("margin", margin, shift),
        Injection("tail", 0.5, tail),
        Injection("bimodal", 0.1, bimodal),
    )


_SIGNIFICANT = 0.05
_FIXED_THRESHOLD = 0.05
_FEWEST = 2

#: whether the second samples are taken for worse than the first; larger is worse
Rule = Callable[[Samples, Samples], bool]


def mann_whitney(baseline: Samples, new: Samples) -> bool:
    """Mann-Whitney, two-sided p < 0.05 (benchstat), and the median is worse."""
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - it takes a second, and the gate itself needs it not

    if np.median(new) <= np.median(baseline):
        return False
    return bool(mannwhitneyu(baseline, new, method="asymptotic").pvalue < _SIGNIFICANT)


def welch(baseline: Samples, new: Samples) -> bool:
    """Welch's t-test, two-sided p < 0.05, and the mean is worse."""
    from scipy.stats import ttest_ind  # noqa: PLC0415 - as above

    if new.mean() <= baseline.mean() or min(len(baseline), len(new)) < _FEWEST:
        return False
    return bool(ttest_ind(baseline, new, equal_var=False).pvalue < _SIGNIFICANT)


def fixed_threshold(baseline: Samples, new: Samples) -> bool:
    """The mean is more than 5 % worse."""
    return bool(new.mean() > baseline.mean() + _FIXED_THRESHOLD * abs(baseline.mean()))


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
    #: whether all metrics of a set are judged together, as in one comparison, or each by itself
    together: bool = False


@dataclass
class Rates:
    """How comparisons ended, by what was injected: counts of verdicts, blocks used, and what other rules say."""

    verdicts: dict[str, Counter[Verdict]] = field(default_factory=dict)
    tails: dict[str, Counter[Verdict]] = field(default_factory=dict)
    blocks_used: list[int] = field(default_factory=list)
    usual: dict[str, dict[str, list[bool]]] = field(default_factory=dict)

    def share(self, injected: str, *verdicts: Verdict) -> float:
        """Return the share of comparisons with ``injected`` that ended with one of ``verdicts``; NaN without any."""
        counts = self.verdicts.get(injected, Counter())
        return sum(counts[one] for one in verdicts) / counts.total() if counts else float("nan")

    def tail_share(self, injected: str) -> float:
        """Return the share of comparisons with ``injected`` whose 99th percentile regressed; NaN without any."""
        counts = self.tails.get(injected, Counter())
        return counts[Verdict.REGRESSED] / counts.total() if counts else float("nan")

    def usual_share(self, rule: str, injected: str) -> float:
        """Return the share of comparisons that ``rule`` takes for worse; NaN without any."""
        found = self.usual.get(rule, {}).get(injected, [])
        return sum(found) / len(found) if found else float("nan")


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
        prepared = _Prepared(group, plan, random)
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

    def __init__(self, group: Sequence[Series], plan: Plan, random: np.random.Generator) -> None:
        self._plan = plan
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
        unchanged = [self._level(base, _chosen(one, new), family) for base, one in zip(bases, self._plain, strict=True)]
        rates.blocks_used += [_blocks_used(one) for one in unchanged]
        for name, summaries in {UNCHANGED: self._plain, **self._summaries}.items():
            news = [_chosen(one, new) for one in summaries]
            levels = [self._level(base, one, family) for base, one in zip(bases, news, strict=True)]
            rates.verdicts.setdefault(name, Counter()).update(self._verdicts(unchanged, levels))
            rates.tails.setdefault(name, Counter()).update(_tail_verdicts(bases, news, family.tail))
        self._add_usual(rates, baseline[-1], new[0])

    def _level(self, baseline: SummarySeries, new: SummarySeries, family: Family) -> Evidence:
        return level_evidence(baseline, new, Unit.SESSION, self._plan.margin, family.level)

    def _verdicts(self, unchanged: list[Evidence], changed: list[Evidence]) -> list[Verdict]:
        """Return the verdict on each metric, when it alone has changed."""
        if not self._plan.together:
            return [decide([one])[0].verdict for one in changed]
        return [
            decide([*unchanged[:place], one, *unchanged[place + 1 :]])[place].verdict
            for place, one in enumerate(changed)
        ]

    def _add_usual(self, rates: Rates, baseline: int, new: int) -> None:
        for name, group in {UNCHANGED: list(self._raw), **self._changed}.items():
            for plain, series in zip(self._raw, group, strict=True):
                sides = _signed(plain, baseline), _signed(series, new)
                for rule, judge in USUAL_RULES.items():
                    rates.usual.setdefault(rule, {}).setdefault(name, []).append(judge(*sides))


def _chosen(series: SummarySeries, blocks: Sequence[int]) -> SummarySeries:
    return replace(series, blocks=tuple(series.blocks[block] for block in blocks))


def _signed(series: Series, block: int) -> Samples:
    samples = series.blocks[block].samples
    return -samples if series.direction is Direction.HIGHER else samples


def _tail_verdicts(bases: Sequence[SummarySeries], news: Sequence[SummarySeries], prior: Prior) -> list[Verdict]:
    evidence = [
        tail_evidence(base, new, Unit.SESSION, DEFAULT_TAIL_MARGIN, prior)
        for base, new in zip(bases, news, strict=True)
    ]
    return [decide([one])[0].verdict for one in evidence if one is not None]


def _blocks_used(evidence: Evidence) -> int:
    """Return how many blocks somebody needs who measures one by one and stops at the first verdict."""
    have = len(evidence.new)
    for blocks in range(1, have + 1):
        decision = decide([evidence.first(blocks)])[0]
        if decision.verdict is not Verdict.UNDECIDED:
            return blocks
    return have
