"""A machine of the tests is gone when the test that has it is, however that ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.qemu.system.bound_machine import removed_at_the_end

from hugepage_qa.qemu.system.machine_registry import Registry

KILLED = """
import os, signal
from tests.unit.qemu.system.bound_machine import removed_at_the_end
from hugepage_qa.cache import cache_directory
from hugepage_qa.qemu.system.machine_registry import Registry
with removed_at_the_end("mine"), Registry(cache_directory()).new_directory("mine"):
    signal.raise_signal(signal.{})
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    found = Registry(tmp_path / "cache")
    with found.new_directory("theirs"):
        pass
    return found


def test_it_is_removed_at_the_end_of_the_block(registry: Registry) -> None:
    with removed_at_the_end("mine"), registry.new_directory("mine"):
        assert registry.names() == ["mine", "theirs"]
    assert registry.names() == ["theirs"]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_it_is_removed_when_the_process_is_ended(registry: Registry, name: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED.format(name)], check=False)
    assert done.returncode == -signal.Signals[name]
    end = time.monotonic() + 60
    while registry.names() != ["theirs"] and time.monotonic() < end:
        time.sleep(0.05)
    assert registry.names() == ["theirs"]
