"""The command ``hugepage-qa``."""

import os
import sys
from collections.abc import Mapping
from importlib import import_module

import click

from hugepage_qa.errors import InputError

_INPUT_WRONG = 3
_INTERRUPTED = 130

#: name -> where it is; in the order of the help
COMMANDS: Mapping[str, str] = {
    "facts": "hugepage_qa.commands.boot_commands:facts",
    "predict": "hugepage_qa.commands.boot_commands:predict",
    "boot": "hugepage_qa.commands.boot_commands:boot",
    "boot-matrix": "hugepage_qa.commands.boot_commands:boot_matrix",
    "check-kernel": "hugepage_qa.commands.check_kernel:check_kernel",
    "reproduce": "hugepage_qa.commands.reproduce:reproduce_command",
    "find-change": "hugepage_qa.commands.find_change:find_change",
    "run": "hugepage_qa.commands.avocado_run:run_command",
    "pool-random": "hugepage_qa.commands.pool_random:pool_random",
    "reboot-cases": "hugepage_qa.commands.reboot_cases:reboot_cases",
    "ps": "hugepage_qa.commands.ps:ps",
    "state": "hugepage_qa.commands.state_commands:state",
    "guest": "hugepage_qa.commands.guest_plan:guest",
    "lab": "hugepage_qa.commands.lab:lab",
    "gate": "hugepage_qa.commands.gate:gate",
    "report": "hugepage_qa.commands.report:report",
}


class _Commands(click.Group):
    """Commands that are imported when they are called: with all of them, each start takes half a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        module, _, name = COMMANDS.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(import_module(module), name) if module else None
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hugepage-qa")
def hugepage_qa() -> None:
    """Test the huge page support of Linux kernels."""


def main() -> None:
    """Run the command line; wrong input is one line and exit code 3, Ctrl-C is exit code 130."""
    try:
        hugepage_qa.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(_INPUT_WRONG)
    except BrokenPipeError:
        # the reader of our output has gone; keep Python from complaining about it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_INPUT_WRONG)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror}")
    except InputError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)


def _fail(message: str) -> None:
    click.echo(f"hugepage-qa: {' '.join(message.split())}", err=True)
    sys.exit(_INPUT_WRONG)
