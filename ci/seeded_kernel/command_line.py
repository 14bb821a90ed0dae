"""Arguments of the commands around seeded kernels."""

import argparse
import sys
from typing import NoReturn

#: exit code that wrong input has everywhere in the suite
BROKEN = 3


class Parser(argparse.ArgumentParser):
    """A parser that ends with one line and the exit code of wrong input."""

    def error(self, message: str) -> NoReturn:
        """End with ``message``."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(BROKEN)
