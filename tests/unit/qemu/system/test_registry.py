"""Names and directories of machines."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.qemu.system.test_system_machine import RECORD

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry, check_name


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def add(registry: Registry, name: str | None = None) -> str:
    with registry.new_directory(name) as directory:
        registry.keep(replace(RECORD, name=directory.name, command=("qemu",)))
        return directory.name


@pytest.mark.parametrize("name", ["lab1", "a", "a-b", "x" * 32])
def test_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "a-", "A", "a b", "x" * 33, "a\n", "lab.1", "ä"])
def test_what_is_no_name(name: str, registry: Registry) -> None:
    with pytest.raises(InputError, match="machine name"):
        check_name(name)
    with pytest.raises(InputError, match="machine name"), registry.new_directory(name):
        pass


def test_names_are_given_in_turn(registry: Registry) -> None:
    assert [add(registry), add(registry), add(registry, "other"), add(registry)] == ["lab1", "lab2", "other", "lab3"]
    registry.drop("lab1")
    assert add(registry) == "lab1"
    assert registry.names() == ["lab1", "lab2", "lab3", "other"]


def test_directories_are_private(registry: Registry) -> None:
    directory = registry.directory(add(registry))
    assert directory.stat().st_mode & 0o077 == 0
    assert directory.parent.stat().st_mode & 0o077 == 0


def test_name_that_is_taken(registry: Registry) -> None:
    add(registry, "a")
    with pytest.raises(InputError, match="there is a machine a already: hugepage-qa lab down a"):
        add(registry, "a")
    assert registry.find("a").record.name == "a"


def test_machine_that_fails_leaves_its_serial_log_alone(registry: Registry) -> None:
    with pytest.raises(InputError, match="no"), registry.new_directory("a") as directory:
        (directory.parent / "a.serial.log").write_text("panic")
        raise InputError("no")
    assert registry.names() == []
    assert [path.name for path in (registry.cache / "machines").iterdir()] == ["a.serial.log"]
    # which is not taken for that of the next one
    add(registry, "a")
    assert not registry.find("a").serial_log.exists()


def test_the_only_machine_needs_no_name(registry: Registry) -> None:
    with pytest.raises(InputError, match="which machine\\? there is none"):
        registry.find(None)
    add(registry, "a")
    assert registry.find(None).record.name == "a"
    add(registry, "b")
    with pytest.raises(InputError, match="which machine\\? there are a, b"):
        registry.find(None)


def test_unknown_machine(registry: Registry) -> None:
    for find in (registry.find, registry.drop):
        with pytest.raises(InputError, match="no machine x: there is none"):
            find("x")


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"name": NaN}', "\xff"])
def test_damaged_machine_is_said_and_can_be_removed(registry: Registry, content: str | None) -> None:
    name = add(registry)
    record = registry.directory(name) / "machine.json"
    if content is None:
        record.unlink()
    else:
        record.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match="hugepage-qa lab down lab1 removes the machine"):
        registry.find(name)
    registry.drop(name)
    assert registry.names() == []


def test_dropping_says_whether_qemu_had_died(registry: Registry) -> None:
    assert registry.drop(add(registry)) is False
