"""The command ``hugepage-qa``."""

import os
import sys
from collections.abc import Mapping

import click

from hugepage_qa.commands.command_parts import LazyGroup
from hugepage_qa.errors import InputError

_INPUT_WRONG = 3
_INTERRUPTED = 130
#: what is wrong may be a text of megabytes, which a message shows
_LONGEST_LINE = 1000

#: name -> where it is; in the order of the help
COMMANDS: Mapping[str, str] = {
    "facts": "boot_commands:facts",
    "predict": "boot_commands:predict",
    "boot": "boot_commands:boot",
    "boot-matrix": "boot_commands:boot_matrix",
    "check-kernel": "check_kernel:check_kernel",
    "reproduce": "reproduce:reproduce_command",
    "find-change": "find_change:find_change",
    "run": "avocado_run:run_command",
    "pool-random": "pool_random:pool_random",
    "reboot-cases": "reboot_cases:reboot_cases",
    "ps": "ps:ps",
    "state": "state_commands:state",
    "guest": "guest_plan:guest",
    "lab": "lab:lab",
    "gate": "gate:gate",
    "report": "report:report",
}


@click.group(cls=LazyGroup, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
    line = " ".join(message.split())
    click.echo(f"hugepage-qa: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + '...'}", err=True)
    sys.exit(_INPUT_WRONG)
