"""``hugepage-qa gate``: has performance become worse than the accepted baseline of this machine?"""

from importlib import import_module

import click

from hugepage_qa.errors import InputError

#: subcommand -> module and function; loaded when it is called, as numpy and scipy take long and need not be installed
#: for anything else
_COMMANDS = {
    "accept": "gate_judging:accept_command",
    "check": "gate_check:command",
    "compare": "gate_judging:compare_command",
    "error-rates": "gate_judging:error_rates_command",
    "history": "gate_judging:history_command",
    "import": "gate_import:command",
    "measure": "gate_measure:command",
    "plan": "gate_judging:plan_command",
    "table": "gate_judging:table_command",
}

_NEEDED = frozenset({"numpy", "scipy"})


class _LazyGroup(click.Group):
    """A group that imports the module of a subcommand on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        name, _, function = _COMMANDS[cmd_name].partition(":")
        try:
            module = import_module(f"hugepage_qa.commands.{name}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _NEEDED:
                raise
            raise InputError(f"gate needs {error.name}: install hugepage-qa[gate]") from error
        command: click.Command = getattr(module, function)
        return command


@click.group(cls=_LazyGroup, epilog="Example: hugepage-qa gate compare new.json --baselines baselines")
def gate() -> None:
    """Compare performance with stored baselines; docs/gate.md explains how.

    Exit codes of compare: 0 pass or improved, 1 regressed, 2 undecided or not comparable, 3 the input is wrong.
    """
