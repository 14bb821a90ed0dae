"""The emulator that a daemon of ours is given: marked as ours, and with no right that its user has not."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hugepage_qa.qemu.guest.libvirt_daemon import write_emulator


def status_of(program: Path) -> str:
    """Return what the kernel tells of ``program``, which is cat, where it is started as libvirt starts a QEMU to ask.

    Skips where no capability can be passed on.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("root alone passes capabilities on, by setpriv(1)")
    words = ["setpriv", "--inh-caps=+dac_override", "--ambient-caps=+dac_override", str(program), "/proc/self/status"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("privileged", "passed_on"), [(True, True), (False, False)])
def test_capabilities_that_libvirt_passes_on(tmp_path: Path, privileged: bool, passed_on: bool) -> None:
    program = write_emulator(tmp_path, shutil.which("cat") or "/bin/cat", {}, privileged=privileged)
    found = re.findall(r"^Cap(?:Inh|Amb):\t(\w+)$", status_of(program), re.MULTILINE)
    assert [int(one, 16) != 0 for one in found] == [passed_on, passed_on]


def test_it_has_the_environment_that_marks_it(tmp_path: Path) -> None:
    program = write_emulator(tmp_path, "/bin/sh", {"MARK": "a b"})
    assert subprocess.run([program, "-c", 'echo "$MARK"'], capture_output=True, text=True, check=True).stdout == "a b\n"
