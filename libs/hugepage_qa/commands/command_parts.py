"""What commands are made of: groups that import a command when it is called, and options that several commands have.

All commands together take half a second and more to import.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from importlib import import_module
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class LazyGroup(click.Group):
    """A group whose commands are at ``places``: name -> module of ``hugepage_qa.commands`` and function in it."""

    def __init__(self, *arguments: Any, places: Mapping[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._places = places

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of the places."""
        return list(self._places)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, name = self._places.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(self.find(module), name) if module else None
        return command

    def find(self, module: str) -> object:
        """Import a ``module`` with commands."""
        return import_module(f"hugepage_qa.commands.{module}")


def options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return what adds the options ``decorators`` to a command, in the order of its help."""

    def add(command: Command) -> Command:
        decorated: Command = reduce(lambda made, decorate: decorate(made), reversed(decorators), command)
        return decorated

    return add
