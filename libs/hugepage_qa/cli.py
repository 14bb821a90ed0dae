"""The command ``hugepage-qa``."""

import os
import sys

import click

from hugepage_qa.commands.boot import boot
from hugepage_qa.commands.boot_matrix import boot_matrix
from hugepage_qa.commands.facts import facts
from hugepage_qa.commands.lab import lab
from hugepage_qa.commands.pool_random import pool_random
from hugepage_qa.commands.predict import predict
from hugepage_qa.commands.ps import ps
from hugepage_qa.commands.reboot_cases import reboot_cases
from hugepage_qa.commands.state import state
from hugepage_qa.errors import InputError
from hugepage_qa.report.run_command import run_command

_INPUT_WRONG = 3
_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hugepage-qa")
def hugepage_qa() -> None:
    """Test the huge page support of Linux kernels."""


for command in (facts, predict, boot, boot_matrix, run_command, reboot_cases, pool_random, ps, state, lab):
    hugepage_qa.add_command(command)


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
