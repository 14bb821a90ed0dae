"""Compare new samples with baselines: is it the same machine, is the baseline good enough, and what became worse?"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from hugepage_gate.baseline_file import FEWEST_BLOCKS, count_replicates
from hugepage_gate.block_summary import SummarySeries, summarise_set
from hugepage_gate.comparison import Comparison, MetricResult, overall_verdict
from hugepage_gate.contrasts import FEWEST_HOSTS, Unit
from hugepage_gate.environment import Difference, environment_differences, subject_differences
from hugepage_gate.evidence import Family, learn_family
from hugepage_gate.gate_policy import Policy
from hugepage_gate.judge_metrics import MetricsJudge
from hugepage_gate.looks import FLOOR, LOOKS
from hugepage_gate.sample_format import are_one, digest
from hugepage_gate.samples import Block, SampleSet, Scalar, Series, Verdict
from hugepage_qa.errors import InputError

FEWEST_BOOTS = 2
OLDEST_BASELINE = timedelta(days=90)


@dataclass(frozen=True)
class BaselineSet:
    """What new samples are compared with: the blocks of each metric, and of what machine and programs they are."""

    source: str
    environment: Mapping[str, Scalar]
    subject: Mapping[str, Scalar]
    series: Mapping[tuple[str, str], SummarySeries]
    family: Family
    mixed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Terms:
    """On what terms to compare.

    ``subject`` is the key of what is under test, ``allowed`` are others that may differ, too. ``oldest`` None: a
    baseline does not age. ``waivers`` are the hard facts that may differ, and why.
    """

    policy: Policy = field(default_factory=Policy)
    subject: str | None = None
    allowed: frozenset[str] = frozenset()
    looks: tuple[tuple[int, float], ...] = LOOKS
    oldest: timedelta | None = OLDEST_BASELINE
    fewest_blocks: int = FEWEST_BLOCKS
    fewest_boots: int = FEWEST_BOOTS
    waivers: Mapping[str, str] = field(default_factory=dict)


def baseline_from_samples(samples: SampleSet, policy: Policy) -> BaselineSet:
    """Return ``samples`` as a baseline."""
    series = summarise_set(samples, margins(samples, policy))
    family = learn_family(list(series.values()))
    return BaselineSet(samples.source, samples.environment, samples.subject, series, family, samples.mixed)


def margins(samples: SampleSet, policy: Policy) -> dict[str, float]:
    """Return the margin of each metric in ``samples``."""
    return {one.metric: policy.of(one.metric).margin for one in samples}


def compare(
    baseline: BaselineSet, new: SampleSet, terms: Terms, numbers: Mapping[tuple[str, str], SummarySeries] | None = None
) -> Comparison:
    """Return the verdict on ``new``, whose ``numbers`` may be known already.

    Raises InputError for samples that contradict the baseline or are all of it.
    """
    machine = _machine_differences(baseline, new, terms)
    expected, confounds = subject_differences(baseline.subject, new.subject, terms.subject, terms.allowed)
    differences = (*machine, *expected, *confounds)
    baseline = replace(baseline, series=_apart(baseline.series, new))
    obstacle = _obstacle([one for one in machine if one.kind == "hard"], confounds)
    unit: Unit | None = None
    if obstacle is None:
        baseline, unit = _choose_hosts(baseline, new)
        if unit is None:
            obstacle = _other_host(baseline, new)
    if obstacle is not None or unit is None:
        return Comparison(
            new.suite, baseline.source, new.source, Verdict.NOT_COMPARABLE, obstacle or "", differences=differences
        )
    if numbers is None:
        numbers = summarise_set(new, margins(new, terms.policy))
    unknown_hosts = None in _hosts(baseline) or not new.hosts
    results = _judge(baseline, numbers, new.reference, unit, terms, unknown_hosts=unknown_hosts)
    verdict, reason = overall_verdict(results)
    notes = (*_notes(baseline, terms), *(_notes_on_hosts(baseline, terms) if unknown_hosts else ()))
    return Comparison(new.suite, baseline.source, new.source, verdict, reason, results, differences, notes)


def _machine_differences(baseline: BaselineSet, new: SampleSet, terms: Terms) -> list[Difference]:
    """Return what differs between the machines, and what is not the same in all files of a side."""
    is_same_host = bool(new.hosts) and new.hosts <= _hosts(baseline)
    found = environment_differences(
        baseline.environment, new.environment, terms.subject, terms.waivers, is_same_host=is_same_host
    )
    mixed = sorted((baseline.mixed | new.mixed) - {one.key for one in found if one.kind in ("hard", "waived")})
    for key in mixed:
        old, now = ("several" if key in side.mixed else side.environment.get(key) for side in (baseline, new))
        found.append(Difference(key, "hard", old, now))
    return found


def _hosts(baseline: BaselineSet) -> set[str | None]:
    return {block.host for one in baseline.series.values() for block in one.blocks}


def _judge(
    baseline: BaselineSet,
    series: Mapping[tuple[str, str], SummarySeries],
    reference: str | None,
    unit: Unit,
    terms: Terms,
    *,
    unknown_hosts: bool,
) -> tuple[MetricResult, ...]:
    judge = MetricsJudge(
        baseline.series,
        series,
        reference,
        baseline.family,
        unit,
        terms.policy,
        terms.looks,
        doubt=lambda one: doubt(one, series.values(), terms),
        unknown_hosts=unknown_hosts,
    )
    return judge.judge()


def _notes(baseline: BaselineSet, terms: Terms) -> tuple[str, ...]:
    boots = {block.boot for one in baseline.series.values() for block in one.blocks}
    if None in boots:
        return (f"the baseline does not say of which boots it is; it should be of at least {FEWEST_BOOTS}",)
    if terms.fewest_boots <= len(boots) < FEWEST_BOOTS:
        return ("the baseline is of one boot: what differs from boot to boot would count as a change",)
    return ()


def _notes_on_hosts(baseline: BaselineSet, terms: Terms) -> tuple[str, ...]:
    """Return what is to be known where nobody recorded hosts: see ``of_unknown_hosts``."""
    differ = math.sqrt(baseline.family.level.variance)
    if differ <= FLOOR * min((terms.policy.of(metric).margin for metric, _ in baseline.series), default=math.inf):
        return ()
    return (
        f"hosts are not recorded, and the usual metric differs by {differ:.1%} from start to start: all new blocks may"
        " be of one other host, and count as one; record hosts, by --fact hostname=NAME",
    )


def doubt(baseline: SummarySeries, new: Collection[SummarySeries], terms: Terms) -> tuple[Verdict, str] | None:
    """Return why ``baseline`` is not good enough for a verdict, or None."""
    boots = {block.boot for block in baseline.blocks}
    replicates = count_replicates(baseline)
    if replicates < terms.fewest_blocks:
        what = f"{replicates} blocks" if replicates == len(baseline.blocks) else f"blocks of {replicates} sessions"
        return Verdict.BASELINE_THIN, f"the baseline has {what}, expected at least {terms.fewest_blocks}"
    if None not in boots and len(boots) < terms.fewest_boots:
        return Verdict.BASELINE_THIN, f"the baseline is of {len(boots)} boots, expected at least {terms.fewest_boots}"
    newest = max((block.started for block in baseline.blocks if block.started), default=None)
    now = max((block.started for one in new for block in one.blocks if block.started), default=None)
    if terms.oldest is not None and newest and now and now - newest > terms.oldest:
        return (
            Verdict.BASELINE_STALE,
            f"the newest block of the baseline is {(now - newest).days} days old, expected at most {terms.oldest.days}",
        )
    return None


def _apart(baseline: Mapping[tuple[str, str], SummarySeries], new: SampleSet) -> dict[tuple[str, str], SummarySeries]:
    """Return ``baseline`` without blocks that are among ``new``, as those of a night that was accepted in part.

    Raises InputError where nothing is left.
    """
    apart = dict(baseline)
    for series in new:
        old = apart.get(series.key)
        if old is not None:
            check_alike(old, series, new.source)
            apart[series.key] = rest = _without(old, series)
            if old.blocks and not rest.blocks:
                raise InputError(f"{new.source}: {series.name}: all of the baseline is here, too; expected new samples")
    return apart


def _without(baseline: SummarySeries, series: Series) -> SummarySeries:
    new: dict[str, list[Block]] = {}
    for block in series.blocks:
        new.setdefault(digest(block.samples), []).append(block)
    kept = (one for one in baseline.blocks if not any(are_one(block, one) for block in new.get(one.sha256, ())))
    return replace(baseline, blocks=tuple(kept))


def check_alike(baseline: SummarySeries, series: Series, source: str) -> None:
    """Raise InputError where ``series`` is in another unit than ``baseline``, or in another direction or kind."""
    for what in ("unit", "direction", "kind"):
        if (one := getattr(baseline, what)) != (two := getattr(series, what)):
            raise InputError(f"{source}: {series.name}: {what} is {two}, but {one} in the baseline; convert or fix it")


def _obstacle(hard: list[Difference], confounds: list[Difference]) -> str | None:
    if hard:
        return f"another machine or set-up: {'; '.join(map(str, hard))}"
    if confounds:
        return (
            f"more has changed than what is under test: {'; '.join(map(str, confounds))} "
            "(name it with --subject, allow others with --allow)"
        )
    return None


def _choose_hosts(baseline: BaselineSet, new: SampleSet) -> tuple[BaselineSet, Unit | None]:
    """Return the part of the baseline to compare with and what a replicate is; None where the hosts forbid it.

    On the hosts of the baseline, those alone are compared. Machines of one type differ, too, so for another host the
    baseline has to show how much: with at least three hosts, each of which is one replicate.
    """
    known = _hosts(baseline)
    if None in known or not new.hosts or known == new.hosts:
        return baseline, Unit.SESSION if len(known) < FEWEST_HOSTS or known != new.hosts else Unit.HOST
    if new.hosts <= known:
        own = {
            key: replace(one, blocks=tuple(block for block in one.blocks if block.host in new.hosts))
            for key, one in baseline.series.items()
        }
        if all(count_replicates(one) >= FEWEST_BLOCKS for one in own.values()):
            return replace(baseline, series=own), Unit.SESSION
    return baseline, Unit.HOST if len(known) >= FEWEST_HOSTS else None


def _other_host(baseline: BaselineSet, new: SampleSet) -> str:
    known = sorted(map(str, _hosts(baseline)))
    return (
        f"another host: {', '.join(sorted(new.hosts))}, the baseline is from {', '.join(known)}; "
        f"a comparison between hosts needs a baseline of at least {FEWEST_HOSTS}"
    )
