"""The command ``hugepage-qa``."""

import os
import sys
import traceback
from collections.abc import Mapping

import click

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.command_parts import LazyGroup
from hugepage_qa.errors import InputError

_INTERRUPTED = 130
#: the libraries that write to our output
_PRINTERS = ("click", "rich")
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
        sys.exit(ExitCode.BROKEN)
    except BrokenPipeError:
        # the reader of our output has gone
        _drop_output()
        sys.exit(ExitCode.BROKEN)
    except OSError as error:
        _fail(_what_failed(error))
    except InputError as error:
        _fail(str(error))
    except click.ClickException as error:
        _fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)


def _what_failed(error: OSError) -> str:
    """Return what is wrong with which file, or with our output, whose errors name no file."""
    why = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{error.filename}: {why}"
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_globals["__name__"].partition(".")[0] not in _PRINTERS:
        return why
    _drop_output()
    return f"output: {why}"


def _drop_output() -> None:
    """Keep Python from complaining at its end of what nobody can get."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> None:
    line = " ".join(message.split())
    click.echo(f"hugepage-qa: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + '...'}", err=True)
    sys.exit(ExitCode.BROKEN)
