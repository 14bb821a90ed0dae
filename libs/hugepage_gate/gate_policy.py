"""How much of a change matters, per metric: ``policy.yaml`` beside the baselines, in git with them.

Counts (page faults, page table kB, pages used) are the same number each time, or within a floor; no t-test. A count is
worse when it leaves the range that the baseline has shown by more than the rule allows. One that varies by more than
that from block to block has noise, as what is measured has, and is judged like that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from hugepage_gate.block_summary import SummarySeries
from hugepage_gate.input_file import check_plain, number, read_text
from hugepage_gate.looks import Decision
from hugepage_gate.samples import Direction, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.schema import find_violation

_TO_CONFIRM = 2


@dataclass(frozen=True)
class CountRule:
    """By how much a count may leave the range of the baseline: a number, or a share of it if that is more."""

    absolute: float = 0.0
    relative: float = 0.0

    def allowed(self, baseline: Sequence[float]) -> float:
        """Return by how much a count may leave the range of ``baseline``."""
        return max(self.absolute, self.relative * max(map(abs, baseline)))


def noise_margin(baseline: SummarySeries, policy: "MetricPolicy") -> float | None:
    """Return the margin, as a share, of a count that varies by more than its rule allows; None for any other.

    It varies from block to block, or inside of blocks, whose medians may agree by chance. A count that has to be equal
    varies by nothing but errors.
    """
    values = [block.location for block in baseline.blocks]
    allowed = policy.count.allowed(values)
    widest = max(max(values) - min(values), *(block.spread for block in baseline.blocks))
    if baseline.direction is Direction.EQUAL or widest <= allowed:
        return None
    return max(policy.margin, policy.count.relative, policy.count.absolute * len(values) / max(sum(values), 1.0))


def decide_count(baseline: Sequence[float], new: Sequence[float], direction: Direction, rule: CountRule) -> Decision:
    """Return the decision on a count, with one number per block. Most blocks, and at least two, have to agree."""
    allowed = rule.allowed(baseline)
    lowest, highest = min(baseline) - allowed, max(baseline) + allowed
    above = sum(value > highest for value in new)
    below = sum(value < lowest for value in new)
    worse, better = {
        Direction.LOWER: (above, below),
        Direction.HIGHER: (below, above),
        Direction.EQUAL: (above + below, 0),
    }[direction]
    span = f"{max(0.0, lowest):g} to {highest:g}"
    if worse >= _TO_CONFIRM and worse > len(new) / 2:
        return Decision(Verdict.REGRESSED, f"{worse} of {len(new)} blocks are outside {span}")
    if worse:
        return Decision(
            Verdict.UNDECIDED, f"{worse} of {len(new)} blocks outside {span}: others have to confirm it", (), 1
        )
    if better >= _TO_CONFIRM and better > len(new) / 2:
        return Decision(Verdict.IMPROVED, f"{better} of {len(new)} blocks are better than {span}")
    return Decision(Verdict.PASS, f"no block is worse than {span}")


FILE_NAME = "policy.yaml"

#: a worsening below this does not matter, where no policy says otherwise
DEFAULT_MARGIN = 0.01
#: the same for the mean of all runs, which slow ones raise
DEFAULT_TAIL_MARGIN = 0.05

#: shares; below, squares of what is planned for a margin have no place in a floating point number
_SMALLEST_MARGIN, _LARGEST_MARGIN = 1e-8, 1.0
#: of a policy; aliases of YAML make any number of a few lines
_MOST_VALUES = 100_000
_PERCENT = 100


@dataclass(frozen=True)
class MetricPolicy:
    """The rules for one metric; margins are shares: 0.01 is 1 %. One that does not gate is only reported."""

    margin: float = DEFAULT_MARGIN
    tail_margin: float = DEFAULT_TAIL_MARGIN
    count: CountRule = field(default_factory=CountRule)
    gates: bool = True


@dataclass(frozen=True)
class Policy:
    """The rules for all metrics; the first pattern that fits a metric counts."""

    rules: Sequence[tuple[str, MetricPolicy]] = ()
    default: MetricPolicy = field(default_factory=MetricPolicy)

    def of(self, metric: str) -> MetricPolicy:
        """Return the rules for ``metric``."""
        return next((rule for pattern, rule in self.rules if fnmatchcase(metric, pattern)), self.default)


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, as JSON does here: one of the two rules would be lost in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping that ``node`` stands for; raises YAMLError."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        twice = [key for key, count in keys.items() if count > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_policy(path: Path) -> Policy:
    """Return the policy in the file ``path``; without the file, the default one. Raises InputError."""
    if not path.exists():
        return Policy()
    try:
        document = yaml.load(read_text(path), _OnceLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{path}: expected YAML: {' '.join(str(error).split())}") from error
    check_plain(document, path, _MOST_VALUES)
    violation = find_violation(document, __package__, "policy")
    if violation is not None:
        raise InputError(f"{path}: {violation}")
    return Policy([(rule["match"], _metric_policy(rule, path)) for rule in document["metrics"]])


def parse_share(text: str) -> float:
    """Return the share that ``text`` (``1%``, ``0.5%``) stands for, at most 100 %. Raises InputError."""
    wanted = f"{text!r}: expected a percentage from 0.000001% to 100%, such as 1%"
    if not text.strip().endswith("%"):
        raise InputError(wanted)
    share = number(text.strip().removesuffix("%"), wanted) / _PERCENT
    if not _SMALLEST_MARGIN <= share <= _LARGEST_MARGIN:
        raise InputError(wanted)
    return share


def _metric_policy(rule: dict[str, Any], path: Path) -> MetricPolicy:
    def share(key: str, default: float) -> float:
        try:
            return parse_share(rule[key]) if key in rule else default
        except InputError as error:
            raise InputError(f"{path}: {rule['match']}: {key}: {error}") from error

    return MetricPolicy(
        margin=share("margin", DEFAULT_MARGIN),
        tail_margin=share("tail_margin", DEFAULT_TAIL_MARGIN),
        count=CountRule(rule.get("absolute", 0.0), share("relative", 0.0)),
        gates=rule.get("gates", True),
    )
