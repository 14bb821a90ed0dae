"""``hugepage-qa gate``: has performance become worse than the accepted baseline of this machine?"""

import click

from hugepage_qa.commands.command_parts import LazyGroup
from hugepage_qa.errors import InputError

#: subcommand -> module and function; loaded when it is called, as numpy and scipy take long and need not be installed
#: for anything else
_COMMANDS = {
    "accept": "gate_judging:accept_command",
    "check": "gate_check:command",
    "compare": "gate_judging:compare_command",
    "error-rates": "gate_describing:error_rates_command",
    "history": "gate_describing:history_command",
    "import": "gate_import:command",
    "measure": "gate_measure:command",
    "path-length": "gate_path_length:path_length",
    "plan": "gate_describing:plan_command",
    "table": "gate_describing:table_command",
}

_NEEDED = frozenset({"numpy", "scipy"})


class _GateGroup(LazyGroup):
    def find(self, module: str) -> object:
        try:
            return super().find(module)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _NEEDED:
                raise
            raise InputError(f"gate needs {error.name}: install hugepage-qa[gate]") from error


@click.group(
    cls=_GateGroup, places=_COMMANDS, epilog="Example: hugepage-qa gate compare new.json --baselines baselines"
)
def gate() -> None:
    """Compare performance with stored baselines; docs/gate.md explains how.

    Exit codes of compare: 0 pass or improved, 1 regressed, 2 undecided or not comparable, 3 the input is wrong.
    """
