"""What to do after a verdict of the gate that decides nothing, or that is bad, in one line."""

from collections.abc import Sequence
from dataclasses import dataclass

from hugepage_gate.comparison import Comparison, MetricResult
from hugepage_gate.samples import Verdict, verdict_on_all

#: the baseline needs what was measured
_LACKING = frozenset({Verdict.BASELINE_THIN, Verdict.BASELINE_STALE})


@dataclass(frozen=True)
class Ways:
    """What the user of a command does to ``accept`` a first baseline, and to ``look`` at more sessions.

    ``look`` is empty where there is no further look. ``samples`` is the directory with a file for each suite;
    ``baselines`` is empty where gate accept finds them by itself.
    """

    accept: str
    look: str
    samples: str
    baselines: str = ""


def next_step(comparisons: Sequence[Comparison], ways: Ways) -> str:
    """Return what to do about the worst of ``comparisons``, empty where they are good."""
    verdict = verdict_on_all(one.verdict for one in comparisons)
    worst = [one for one in comparisons if one.verdict is verdict]
    if verdict is Verdict.NOT_COMPARABLE:
        return _comparable(worst, ways)
    if verdict is Verdict.REGRESSED:
        answer = _accept(worst, ways, "--acknowledge COMMIT --metric NAME")
        return f"look at the commit; to answer for it: {answer}"
    if verdict is Verdict.DISTURBED:
        return "measure again while nothing else uses the machine"
    if verdict in _LACKING:
        return f"add these blocks to the baseline and measure again: {_accept(worst, ways)}"
    return _decisive(worst, ways) if verdict is Verdict.UNDECIDED else ""


def _comparable(comparisons: Sequence[Comparison], ways: Ways) -> str:
    differs = {difference.kind for one in comparisons for difference in one.differences}
    if not differs:
        return f"{ways.accept} measures a first baseline and accepts it"
    if "hard" in differs:
        return f"undo what differs; or {ways.accept} measures a baseline of this set-up and accepts it"
    return "undo what differs, or measure it once and compare with gate compare (--allow, --subject)"


def _decisive(comparisons: Sequence[Comparison], ways: Ways) -> str:
    """Return what would decide: further sessions, a larger baseline, or neither."""
    lacking = [each for each in comparisons if any(not one.baseline_blocks for one in _undecided(each))]
    if lacking:
        return f"accept a baseline of what has none and measure again: {_accept(lacking, ways)}"
    undecided = [one for each in comparisons for one in _undecided(each)]
    if ways.look and (any(one.more_blocks for one in undecided) or _helped(comparisons, grows=False)):
        return f"{ways.look} looks once more, at more sessions"
    if undecided:
        return "measure again: what is undecided lies between no change and the margin"
    if helped := _helped(comparisons, grows=True):
        return f"a larger baseline would decide; add to it and measure again: {_accept(helped, ways)}"
    return "a quieter machine, or larger margins (policy.yaml of the baselines): more sessions see no more"


def _undecided(comparison: Comparison) -> list[MetricResult]:
    return [one for one in comparison.results if one.gates and one.verdict is Verdict.UNDECIDED]


def _helped(comparisons: Sequence[Comparison], *, grows: bool) -> list[Comparison]:
    """Return those of ``comparisons`` of which more blocks would leave no more than half of the metrics blind.

    They are new ones; or also of the baseline, if that ``grows``.
    """
    return [one for one in comparisons if _is_helped(one, grows=grows)]


def _is_helped(comparison: Comparison, *, grows: bool) -> bool:
    counted = [one for one in comparison.results if one.gates]
    blind = [one for one in counted if one.verdict is Verdict.BLIND]
    helped = [one for one in blind if (one.more_baseline if grows else one.more_blocks and not one.more_baseline)]
    return bool(helped) and 2 * (len(blind) - len(helped)) <= len(counted)


def _accept(comparisons: Sequence[Comparison], ways: Ways, *further: str) -> str:
    """Return the command that accepts what was measured; it takes one suite at a time."""
    first, *others = (one.suite for one in comparisons)
    baselines = [f"--baselines {ways.baselines}"] if ways.baselines else []
    words = ("hugepage-qa gate accept", f"{ways.samples}/{first}.json", *baselines, "--reason WHY", *further)
    return " ".join(words) + (f"; likewise {', '.join(others)}" if others else "")
