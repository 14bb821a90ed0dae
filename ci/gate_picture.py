"""The picture of docs/gate-in-short.md: how the gate decides, on a measurement whose truth is known.

    gate_picture.py FILE.svg

Five accepted starts and three new ones of a metric that became 2 % slower, drawn from a fixed seed, judged by the gate
itself: every number in the picture is one of its own.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from ci.gate_worlds import World, quiet_machine

from hugepage_gate.block_summary import location
from hugepage_gate.compare_suites import Terms, baseline_from_samples, compare
from hugepage_gate.comparison import MetricResult
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import Samples, SampleSet, Series
from hugepage_qa.cases.result import ExitCode

SEED = 3
ACCEPTED, NEW = 5, 3
SLOWER = 1.02
METRICS = 20

_WIDTH, _LEFT, _RIGHT = 960, 30, 600
#: of a row, and of the first one
_STEP, _TOP = 34, 60
_OLD, _CHANGED, _MARGIN = "#3465a4", "#cc6600", "#a40000"


def main(words: Sequence[str]) -> int:
    """Write the picture; return 3 for wrong words."""
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return ExitCode.BROKEN
    Path(words[0]).write_text(draw(), encoding="utf-8")
    return ExitCode.GOOD


def draw() -> str:
    """Return the picture as SVG."""
    everything = World("picture", quiet_machine, ACCEPTED + NEW).sample_set(SEED, METRICS)
    accepted, new = _part(everything, slice(ACCEPTED), 1.0), _part(everything, slice(ACCEPTED, None), SLOWER)
    comparison = compare(baseline_from_samples(accepted, Policy()), new, Terms(Policy()))
    metric = everything.series[0].metric
    result = next(one for one in comparison.results if one.metric == metric and one.estimand == "level")
    return _svg(_blocks(accepted), _blocks(new), result)


def _part(samples: SampleSet, blocks: slice, factor: float) -> SampleSet:
    """Return ``blocks`` of all metrics, of which the first is slower by ``factor``."""

    def series(one: Series, times: float) -> Series:
        return replace(one, blocks=tuple(replace(block, samples=times * block.samples) for block in one.blocks[blocks]))

    first, *others = samples.series
    return replace(samples, series=(series(first, factor), *(series(one, 1.0) for one in others)))


def _blocks(samples: SampleSet) -> list[Samples]:
    return [block.samples for block in samples.series[0].blocks]


def _svg(accepted: Sequence[Samples], new: Sequence[Samples], result: MetricResult) -> str:
    (old, now), change = result.levels, result.change
    if old is None or now is None or change is None:
        raise ValueError(f"{result.metric}: expected an estimate, got {result.verdict}")
    values = np.concatenate([*accepted, *new, [old * (1 + change.upper)]])
    low, high = float(values.min()), float(values.max())

    def x(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_RIGHT - _LEFT)

    parts = [_text(_LEFT, 30, "Runs (small) of each start, and its level (large)", weight="bold")]
    for place, block in enumerate([*accepted, *new]):
        y = _TOP + place * _STEP
        colour = _OLD if place < len(accepted) else _CHANGED
        parts += [f'<circle cx="{x(run):.1f}" cy="{y}" r="2.5" fill="{colour}" opacity="0.5"/>' for run in block]
        parts.append(f'<circle cx="{x(location(block)):.1f}" cy="{y}" r="7" fill="{colour}"/>')
    bottom = _TOP + (len(accepted) + len(new)) * _STEP
    side = _RIGHT + 30
    middle_of_new = _TOP + (len(accepted) + len(new) / 2) * _STEP
    parts += [
        _text(side, _TOP + 40, "1. Accepted starts. A thousand runs of one", fill=_OLD),
        _text(side, _TOP + 60, "start share its luck: each start is one number.", fill=_OLD),
        _text(side, _TOP + 80, "How far these lie apart is luck.", fill=_OLD),
        _text(side, middle_of_new, "2. New starts. Are they further off than luck?", fill=_CHANGED),
    ]
    y = bottom + 40
    limit = old * (1 + result.margin)
    parts += [
        f'<line x1="{x(old):.1f}" y1="{_TOP - 15}" x2="{x(old):.1f}" y2="{y + 20}" stroke="{_OLD}"/>',
        f'<line x1="{x(limit):.1f}" y1="{_TOP - 15}" x2="{x(limit):.1f}" y2="{y + 20}" stroke="{_MARGIN}"'
        ' stroke-dasharray="6 4"/>',
        _text(x(old), y + 36, "baseline", fill=_OLD, anchor="end"),
        _text(x(limit), y + 36, f"margin {result.margin:+.1%}", fill=_MARGIN, anchor="start"),
        f'<line x1="{x(old * (1 + change.lower)):.1f}" y1="{y}" x2="{x(old * (1 + change.upper)):.1f}" y2="{y}"'
        f' stroke="{_CHANGED}" stroke-width="4"/>',
        f'<circle cx="{x(now):.1f}" cy="{y}" r="7" fill="{_CHANGED}"/>',
        _text(side, y - 6, f"3. The change: {change.estimate:+.1%}, and what it may be:", fill=_CHANGED),
        _text(side, y + 14, f"{change.lower:+.1%} to {change.upper:+.1%}.", fill=_CHANGED),
    ]
    rules = (
        ("regressed", "the good end is right of the baseline, the change above 2/3 of the margin, others confirm it"),
        ("pass", "the bad end is left of the margin"),
        ("undecided", "neither: more starts make the bar shorter"),
        ("blind", "the bar is so long that it would not surely pass if nothing had changed"),
    )
    y += 84
    parts.append(_text(_LEFT, y, f"4. The verdict, here: {result.verdict}", weight="bold"))
    for verdict, rule in rules:
        y += 24
        weight = "bold" if verdict == result.verdict else "normal"
        parts += [_text(_LEFT + 14, y, verdict, weight=weight), _text(_LEFT + 114, y, rule, weight=weight)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y + 24}" font-family="sans-serif"'
        ' font-size="14"><rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, *, fill: str = "black", anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
