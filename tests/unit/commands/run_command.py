"""A command of hugepage-qa that is run in this process."""

import sys
from pathlib import Path

import pytest

from hugepage_qa import cli


class Command:
    """Runs the command of these ``words``; keeps its output and errors."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
        self._capsys, self._monkeypatch, self._words = capsys, monkeypatch, words
        self.output = self.errors = ""

    def __call__(self, *arguments: str | Path) -> int:
        """Run it and return its exit code."""
        self._monkeypatch.setattr(sys, "argv", ["hugepage-qa", *self._words, *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        self.output, self.errors = self._capsys.readouterr()
        return code
