"""``hugepage-qa gate``: has performance become worse than the accepted baseline of this machine?"""

from importlib import import_module

import click

from hugepage_qa.errors import InputError

#: subcommand -> module; loaded when it is called, as numpy and scipy take long and need not be installed for anything
#: else
_MODULES = {
    "accept": "gate_accept",
    "check": "gate_check",
    "compare": "gate_compare",
    "error-rates": "gate_error_rates",
    "history": "gate_history",
    "import": "gate_import",
    "measure": "gate_measure",
    "plan": "gate_plan",
    "table": "gate_table",
}

_NEEDED = frozenset({"numpy", "scipy"})


class _LazyGroup(click.Group):
    """A group that imports the module of a subcommand on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _MODULES:
            return None
        try:
            module = import_module(f"hugepage_qa.commands.{_MODULES[cmd_name]}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _NEEDED:
                raise
            raise InputError(f"gate needs {error.name}: install hugepage-qa[gate]") from error
        command: click.Command = module.command
        return command


@click.group(cls=_LazyGroup, epilog="Example: hugepage-qa gate compare new.json --baselines baselines")
def gate() -> None:
    """Compare performance with stored baselines; docs/gate.md explains how.

    Exit codes of compare: 0 pass or improved, 1 regressed, 2 undecided or not comparable, 3 the input is wrong.
    """
