"""What a run of tmt that was cut off has left in the lab is removed, and nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.qemu.system.test_system_machine import RECORD

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry, drop_machines


def guests_file(run: Path, text: str) -> None:
    file = run / "run" / "plans" / "functional" / "provision" / "guests.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    found = Registry(tmp_path / "cache")
    for name, port in (("lab1", 1111), ("lab2", 2222)):
        with found.new_directory(name):
            found.keep(replace(RECORD, name=name, port=port))
    return found


def test_the_machines_of_the_run_are_removed(tmp_path: Path, registry: Registry) -> None:
    guests_file(tmp_path, "default-0:\n  machine: lab2\n  port: 2222\nother:\n  machine: lab7\n  port: 1111\n")
    assert drop_machines(tmp_path, registry) == ["lab2"]
    assert registry.names() == ["lab1"]


def test_a_machine_of_another_run_that_has_got_the_name_meanwhile_stays(tmp_path: Path, registry: Registry) -> None:
    guests_file(tmp_path, "default-0:\n  machine: lab2\n  port: 1111\n")
    assert drop_machines(tmp_path, registry) == []
    assert registry.names() == ["lab1", "lab2"]


@pytest.mark.parametrize("text", ["", "default-0:\n  machine:\n", "- lab1\n", "default-0: lab1\n"])
def test_a_run_without_machines_removes_none(tmp_path: Path, registry: Registry, text: str) -> None:
    assert drop_machines(tmp_path, registry) == []
    guests_file(tmp_path, text)
    assert drop_machines(tmp_path, registry) == []
    assert registry.names() == ["lab1", "lab2"]


def test_a_file_that_is_cut_off(tmp_path: Path, registry: Registry) -> None:
    guests_file(tmp_path, "default-0: {machine: lab1")
    with pytest.raises(InputError, match=r"guests\.yaml: expected the guests"):
        drop_machines(tmp_path, registry)
    assert registry.names() == ["lab1", "lab2"]
