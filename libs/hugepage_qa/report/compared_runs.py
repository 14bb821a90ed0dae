"""The same cases in several runs: which ended differently, which one of them left out, and why; others are counted.

A case is the same by its name and page size, whoever ran it: tmt on a machine, or check-kernel on throwaway ones.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.cases.result import ExitCode, NameParts, Verdict, name_parts
from hugepage_qa.report.merged_runs import Table
from hugepage_qa.report.run_directory import MergedCase, Run


@dataclass(frozen=True)
class Comparison:
    """What several runs say of the same cases; whatever is told of each of ``runs`` is in their order."""

    runs: tuple[Run, ...]
    #: how many cases ended alike in all runs, and how
    alike: Mapping[Verdict, int]
    #: case -> how it ended
    differences: Mapping[str, tuple[str, ...]]
    #: how it ended, alike wherever it was run, or why it was skipped -> the cases of which this is so; the most first
    skipped: Mapping[tuple[str, ...], tuple[str, ...]]
    #: the same of cases that one of the runs does not even have
    absent: Mapping[tuple[str, ...], tuple[str, ...]]
    #: how many cases were run twice or more, and by none
    common: int
    untried: int

    @property
    def exit_code(self) -> ExitCode:
        """0 nothing ended differently, 1 a case did, 2 no case was run twice."""
        if self.differences:
            return ExitCode.BAD
        return ExitCode.GOOD if self.common else ExitCode.UNDECIDED


def compare(runs: Sequence[Run]) -> Comparison:
    """Return what ``runs`` say of the same cases."""
    sides = [_Side(run) for run in runs]
    alike: Counter[Verdict] = Counter()
    differences: dict[str, tuple[str, ...]] = {}
    skipped: dict[tuple[str, ...], list[str]] = defaultdict(list)
    absent: dict[tuple[str, ...], list[str]] = defaultdict(list)
    common = untried = 0
    for name in _names(sides):
        ran = [outcome for side in sides if (outcome := side.outcome(name))]
        common += len(ran) > 1
        if len(set(ran)) > 1:
            differences[_text(name)] = tuple(side.told(name) for side in sides)
        elif not ran:
            untried += 1
        elif len(ran) < len(sides):
            lacking = skipped if all(side.has(name) for side in sides) else absent
            lacking[tuple(side.left_out(name) or f"ran: {ran[0][0]}" for side in sides)].append(_text(name))
        else:
            alike[ran[0][0]] += 1
    return Comparison(tuple(runs), alike, differences, _most_first(skipped), _most_first(absent), common, untried)


def _most_first(names: Mapping[tuple[str, ...], list[str]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    return {why: tuple(names[why]) for why in sorted(names, key=lambda why: -len(names[why]))}


class _Side:
    """The cases of one run, by name."""

    def __init__(self, run: Run) -> None:
        self.cases = {name_parts(case.case): case for case in run.cases}
        self._sizes = {name.size for name in self.cases}
        self._cpus = {name.cpu for name in self.cases}
        self._areas = {_area(name) for name in self.cases}

    def outcome(self, name: NameParts) -> tuple[Verdict, tuple[str, ...]] | None:
        """Return the verdict, and which bug is known, None where ``name`` was not run.

        Numbers in other reasons are of one run.
        """
        case = self.cases.get(name)
        if case is None or case.verdict is Verdict.SKIP:
            return None
        return case.verdict, case.reasons[:1] if case.verdict is Verdict.KNOWN else ()

    def told(self, name: NameParts) -> str:
        """Return how ``name`` ended, with its reasons, or why it was not run."""
        return self.left_out(name) or _told(self.cases[name])

    def has(self, name: NameParts) -> bool:
        """Tell whether ``name`` is a case of the run."""
        return self._find(name) is not None

    def left_out(self, name: NameParts) -> str:
        """Return why ``name`` was not run, nothing where it was."""
        if case := self._find(name):
            return _told(case) if case.verdict is Verdict.SKIP else ""
        if name.cpu not in self._cpus:
            return f"no case with CPU {name.cpu or 'by default'}"
        if _area(name) not in self._areas:
            return "no case of the area"
        return "no such case" if name.size in self._sizes else f"no case on pages of {name.size}"

    def _find(self, name: NameParts) -> MergedCase | None:
        # a case that is left out on every page size is one skip
        return self.cases.get(name) or self.cases.get(name._replace(size=""))


def _names(sides: Sequence[_Side]) -> list[NameParts]:
    """Return the names of all cases; one that a side left out on every page size is told for each size of others."""
    names = {name for side in sides for name in side.cases}
    return sorted(names - {name._replace(size="") for name in names if name.size})


def _told(case: MergedCase) -> str:
    return ": ".join((case.verdict.value, *filter(None, ["; ".join(case.reasons)])))


def _area(name: NameParts) -> str:
    return "/".join(name.rule.split("/")[:2])


def _text(name: NameParts) -> str:
    return name.rule + f"/{name.size}" * bool(name.size) + f"@{name.cpu}" * bool(name.cpu)


def headline(comparison: Comparison) -> str:
    """Return the counts in one line."""
    alike = ", ".join(f"{count} {verdict.value}" for verdict, count in comparison.alike.items())
    return (
        f"{len(comparison.differences)} ended differently, {sum(comparison.alike.values())} alike"
        f"{f' ({alike})' if alike else ''}, {_count(comparison.skipped)} skipped by some, {comparison.untried} run by "
        f"none, {_count(comparison.absent)} not in all runs"
    )


def _count(names: Mapping[tuple[str, ...], tuple[str, ...]]) -> int:
    return sum(map(len, names.values()))


def tables(comparison: Comparison) -> list[Table]:
    """Return all tables of the comparison: the runs, and what they differ in."""
    numbers = tuple(f"run {number}" for number in range(1, len(comparison.runs) + 1))
    return [
        Table(
            "Runs",
            ("run", "directory", "machines", "cases"),
            tuple(
                (number, str(run.path), run.machine, str(len(run.cases)))
                for number, run in zip(numbers, comparison.runs, strict=True)
            ),
            "None.",
        ),
        Table(
            "What ended differently",
            ("case", *numbers),
            tuple((name, *told) for name, told in comparison.differences.items()),
            "Every case ended alike in all runs that ran it.",
        ),
        Table(
            "What some of them skipped",
            ("cases", *numbers, "names"),
            tuple((str(len(names)), *told, ", ".join(names)) for told, names in comparison.skipped.items()),
            "Each case that one of them ran was run by all that have it.",
        ),
        Table(
            "What some of them do not have",
            ("cases", *numbers, "areas"),
            tuple((str(len(names)), *told, _areas(names)) for told, names in comparison.absent.items()),
            "All of them have the same cases.",
        ),
    ]


def _areas(names: Sequence[str]) -> str:
    count = Counter(_area(name_parts(name)) for name in names)
    return ", ".join(f"{area} {number}" for area, number in count.items())
