"""Arguments of the commands in ``ci``, which are for those who work on the suite."""

import argparse
import sys
from typing import NoReturn

import click

from hugepage_qa.cases.result import ExitCode


class Parser(argparse.ArgumentParser):
    """A parser that ends with one line, and not with 2, which says that nothing was decided."""

    def error(self, message: str) -> NoReturn:
        """End with ``message``."""
        click.echo(f"{self.prog}: {message}", err=True)
        sys.exit(ExitCode.BROKEN)
