"""What subcommands of ``hugepage-qa gate`` share: options, the policy, and pictures."""

import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hugepage_gate.baseline_file import FEWEST_BLOCKS
from hugepage_gate.compare_suites import FEWEST_BOOTS
from hugepage_gate.gate_policy import FILE_NAME, MetricPolicy, Policy, parse_share, read_policy
from hugepage_qa.commands.command_parts import options
from hugepage_qa.errors import InputError
from hugepage_qa.report.gate_page import GatePage

baselines_option = click.option(
    "--baselines",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("baselines"),
    show_default=True,
    help="Directory of accepted baselines.",
)


class Share(click.ParamType[float]):
    """A percentage: ``1%`` -> 0.01."""

    name = "1%"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> float:
        """Return a share; raises InputError, which names the input."""
        return value if isinstance(value, float) else parse_share(value)


class OutputFile(click.ParamType[Path]):
    """A file to write: it is replaced by rename(2), which would also make a file of a device node such as /dev/null."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path of a regular file, or of nothing yet; raises BadParameter."""
        path = Path(value)
        if path.is_symlink() or (path.exists() and not path.is_file()):
            self.fail(f"{path} is no regular file; expected the name of a new file, or of one to replace", param, ctx)
        return path


class Cost(click.FloatRange):
    """A number in a range; click takes nan for one of any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return a number; raises BadParameter."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is no number", param, ctx)
        return found


#: a fact of the machine may differ for once, if somebody says why
waive_option = click.option(
    "--waive",
    "waivers",
    multiple=True,
    metavar="KEY=REASON",
    help="A fact of the machine that may differ this time, such as microcode; repeatable.",
)


def parse_waivers(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the facts that are waived, and why. Raises InputError without a reason."""
    found = {}
    for text in texts:
        key, _, reason = text.partition("=")
        if not key.strip() or not reason.strip():
            raise InputError(f"--waive {text!r}: expected KEY=REASON, such as microcode='update of 2026-02'")
        found[key.strip()] = reason.strip()
    return found


#: say on what terms samples are compared
terms_options = options(
    waive_option,
    click.option("--subject", help="Key of what is under test, such as kernel. Default: the only one that differs."),
    click.option("--allow", multiple=True, metavar="KEY", help="Another subject key that may differ."),
    click.option("--margin", type=Share(), help="Worsening that does not matter, for all metrics."),
    click.option(
        "--policy", "policy_file", type=click.Path(path_type=Path), help=f"Default: {FILE_NAME} of the baselines."
    ),
    click.option(
        "--max-age", type=click.IntRange(1, 36500), default=90, show_default=True, metavar="DAYS", help="Of a baseline."
    ),
    click.option(
        "--min-blocks", type=click.IntRange(2), default=FEWEST_BLOCKS, show_default=True, help="Of a baseline."
    ),
    click.option("--min-boots", type=click.IntRange(1), default=FEWEST_BOOTS, show_default=True, help="Of a baseline."),
)


def make_policy(policy_file: Path | None, baselines: Path | None, margin: float | None) -> Policy:
    """Return the policy: ``margin`` for all, that of a file, or of ``baselines``. Raises InputError."""
    if margin is not None:
        return Policy(default=MetricPolicy(margin=margin))
    if policy_file is not None:
        if not policy_file.exists():
            raise InputError(f"{policy_file}: no such file, expected a policy")
        return read_policy(policy_file)
    return Policy() if baselines is None else read_policy(baselines / FILE_NAME)


def html_renderer() -> Callable[[GatePage], str]:
    """Return what makes the HTML; it needs matplotlib, which nothing else does. Raises InputError without."""
    try:
        renderer: Callable[[GatePage], str] = import_module("hugepage_qa.report.gate_report").render_html
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise InputError("pictures in HTML need matplotlib: install hugepage-qa[report]") from error
    return renderer
