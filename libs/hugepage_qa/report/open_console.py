"""The console that commands print on. It imports nothing else of ours, which would take longer than many commands."""

import os
import sys

from rich.console import Console

#: characters in a line where there is no terminal: enough for the names of all facts
_WIDTH = 200


def open_console() -> Console:
    """Return a console on standard output, wide where it is no terminal."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=_WIDTH)
