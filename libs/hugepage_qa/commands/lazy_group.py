"""Groups of commands that are imported when they are called: all of them together take half a second and more."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are at ``places``: name -> module of ``hugepage_qa.commands`` and function in it."""

    def __init__(self, *arguments: Any, places: Mapping[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._places = places

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of the places."""
        return list(self._places)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        module, _, name = self._places.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(self.find(module), name) if module else None
        return command

    def find(self, module: str) -> object:
        """Import a ``module`` with commands."""
        return import_module(f"hugepage_qa.commands.{module}")
