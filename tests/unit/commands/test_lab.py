"""``hugepage-qa lab``, as people use it; no machine is booted."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.qemu.system.test_system_machine import RECORD

from hugepage_qa.commands import lab as module
from hugepage_qa.commands.lab import lab
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.system_launch import SystemOptions
from hugepage_qa.qemu.system.system_machine import SystemMachine
from hugepage_qa.sizes import GIB

Run = Callable[..., Result]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return Registry(tmp_path / "cache")


@pytest.fixture
def run(registry: Registry) -> Run:
    assert registry.names() == []

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(lab, words, catch_exceptions=True)

    return invoke


@pytest.fixture
def asked_for(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[SystemOptions]:
    """Every machine that was asked for; it is there at once."""
    asked: list[SystemOptions] = []

    def bring_up(cache: Path, options: SystemOptions, **_options: Any) -> SystemMachine:
        asked.append(options)
        assert cache == registry.cache
        return add(registry, options.name or "lab1")

    monkeypatch.setattr(module, "bring_up", bring_up)
    return asked


def add(registry: Registry, name: str) -> SystemMachine:
    with registry.new_directory(name):
        return registry.keep(replace(RECORD, name=name, key=registry.cache / "key"))


def test_up_without_options(run: Run, asked_for: list[SystemOptions]) -> None:
    result = run("up")
    assert (result.exit_code, result.stdout) == (0, "lab1\n")
    assert asked_for == [SystemOptions()]
    assert "hugepage-qa lab ssh lab1" in result.stderr


def test_up_with_all_options(run: Run, asked_for: list[SystemOptions], tmp_path: Path) -> None:
    words = ["--memory", "4G", "--nodes", "2", "--cpus", "3", "--append", "hugepages=1", "--name", "x"]
    result = run("up", *words, "--kernel", str(tmp_path), "--arch", "x86_64")
    assert result.exit_code == 0
    assert asked_for == [SystemOptions((2 * GIB, 2 * GIB), 3, tmp_path, "hugepages=1", "x86_64", "x")]


@pytest.mark.parametrize("words", [["--nodes", "x"], ["--memory", "4"], ["--memory", "1G", "--nodes", "2G"]])
def test_up_refuses(run: Run, asked_for: list[SystemOptions], words: list[str]) -> None:
    assert isinstance(run("up", *words).exception, InputError)
    assert asked_for == []


@pytest.mark.parametrize("words", [["--cpus", "0"], ["--arch", "s390x"], ["--deadline", "0"]])
def test_up_refuses_what_is_out_of_range(run: Run, asked_for: list[SystemOptions], words: list[str]) -> None:
    assert run("up", *words).exit_code == 2
    assert asked_for == []


def test_list_shows_those_that_died(run: Run, registry: Registry) -> None:
    assert run("list").output == ""
    add(registry, "a")
    assert run("list").output.startswith(
        "a: QEMU has died, lab power-on or lab down: x86_64 (tcg), memory 1G,0, 2 CPUs"
    )


def test_list_goes_on_after_a_damaged_machine(run: Run, registry: Registry) -> None:
    for name in ("a", "b"):
        add(registry, name)
    (registry.directory("a") / "machine.json").unlink()
    first, second = run("list").output.splitlines()
    assert first.startswith("a: ")
    assert "it is not there (the machine is being made" in first
    assert second.startswith("b: QEMU has died")


def test_down(run: Run, registry: Registry) -> None:
    for name in ("a", "b", "c"):
        add(registry, name)
    assert isinstance(run("down").exception, InputError)
    assert run("down", "a").stderr == "machine a is gone, its QEMU had died before\n"
    assert registry.names() == ["b", "c"]
    assert run("down", "b", "--all").exit_code == 2
    assert run("down", "--all").exit_code == 0
    assert registry.names() == []
    assert run("down", "--all").exit_code == 0


@pytest.mark.parametrize("command", ["ssh", "reboot", "power-cut"])
def test_machine_that_is_off_is_not_asked(run: Run, registry: Registry, command: str) -> None:
    add(registry, "a")
    exception = run(command, "a").exception
    assert isinstance(exception, InputError)
    assert "is off, or its QEMU has died" in str(exception)


@pytest.mark.parametrize(
    ("words", "command", "terminal"),
    [
        ([], [], True),
        (["a"], [], True),
        (["a", "ls", "-l", "--all"], ["ls", "-l", "--all"], False),
        (["a", "--", "ls", "-l"], ["ls", "-l"], False),
    ],
)
def test_ssh_becomes_ssh(
    run: Run,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    command: list[str],
    terminal: bool,
) -> None:
    add(registry, "a")
    executed: list[list[str]] = []
    monkeypatch.setattr(SystemMachine, "running", True)
    monkeypatch.setattr(os, "execv", lambda program, line: executed.append([program, *line]))
    assert run("ssh", *words).exit_code == 0
    (line,) = executed
    assert line[0] == line[1]
    assert line[line.index("--") + 1 :] == command
    assert ("-t" in line) is terminal
    assert f'-oIdentityFile="{registry.cache / "key"}"' in line
