"""The table of what finds which fault, in Markdown."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ci.seeded_kernel.faults import Fault

_SHOWN_CASES = 3
_WIDTH = 120


@dataclass(frozen=True)
class Outcome:
    """What was measured of a fault: the cases that found it, of the ``areas`` that ran, in ``seconds``.

    ``others_looked`` is False where it was left at the first case that found it.
    """

    fault: Fault
    found_by: tuple[str, ...]
    areas: tuple[str, ...]
    seconds: float
    others_looked: bool = True


def table(outcomes: Sequence[Outcome], silent: Sequence[str]) -> str:
    """Return the faults by area, the cases that alone find something, and those (``silent``) that found nothing."""
    found = sum(bool(outcome.found_by) for outcome in outcomes)
    lines = [f"{found} of {len(outcomes)} faults were found.", "", "| area | faults | found |", "|---|---|---|"]
    areas = dict.fromkeys(outcome.fault.area for outcome in outcomes)
    for area in areas:
        here = [outcome for outcome in outcomes if outcome.fault.area == area]
        lines.append(f"| {area} | {len(here)} | {sum(bool(outcome.found_by) for outcome in here)} |")
    for area in areas:
        lines += ["", f"## {area}", ""]
        for outcome in outcomes:
            if outcome.fault.area == area:
                lines += _wrapped(_told(outcome))
    lines += ["", "## Cases that alone find a fault", ""]
    for case, names in _alone(outcomes).items():
        lines += _wrapped(f"`{case}`: {', '.join(names)}")
    lines += [
        "",
        "## Cases that ran and found nothing",
        "",
        *_wrapped(", ".join(f"`{case}`" for case in silent) or "none"),
    ]
    return "\n".join((*lines, ""))


def _told(outcome: Outcome) -> str:
    names = [f"`{case}`" for case in outcome.found_by[:_SHOWN_CASES]]
    more = len(outcome.found_by) - len(names)
    found = f"found by {', '.join(names)}{f' and {more} more' if more > 0 else ''}"
    missed = f"**not found** by {', '.join(outcome.areas)}"
    return f"{outcome.fault.name}: {outcome.fault.breaks}; {found if names else missed}"


def _wrapped(text: str) -> list[str]:
    """Return ``text`` as an item of a list, in lines of the width that the pages have."""
    return textwrap.wrap(f"* {text}", _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _alone(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """Return case -> the faults that no other case found, of those that others looked for."""
    alone: dict[str, list[str]] = {}
    for outcome in outcomes:
        if len(outcome.found_by) == 1 and outcome.others_looked:
            alone.setdefault(outcome.found_by[0], []).append(outcome.fault.name)
    return dict(sorted(alone.items()))
