"""avocado-vt with a test provider of a directory, in a home of its own: nothing is downloaded, nothing of it stays."""

import configparser
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases import run_settings
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.qemu.installed_emulator import installed_emulator

#: of avocado-vt, those that the provider has tests for
VT_TYPES = ("qemu", "libvirt")

# below the data directory of Avocado (virttest.data_dir)
_PROVIDERS = Path("avocado-vt/virttest/test-providers.d")
_BOOTSTRAP = ("vt-bootstrap", "--vt-no-downloads", "--yes-to-all", "--vt-update-config")
_MISSING = re.compile(r"Required command (\S+) is missing")


def prepare_vt(vt_type: str, directory: Path, home: Path, data: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Bootstrap avocado-vt for ``vt_type`` with the provider in ``directory``; return ``environment`` with its own.

    ``home`` holds the configuration of Avocado, which names ``data`` as its data directory. Raises InputError without
    avocado-vt, without a provider, and without a program that avocado-vt insists on.
    """
    if importlib.util.find_spec("avocado_vt") is None:
        raise InputError(f"--vt-type {vt_type}: avocado-vt is not installed; install hugepage-qa[vt]")
    _register(directory, data / _PROVIDERS)
    whole = {**environment, **_environment(home)}
    command = [sys.executable, "-m", "avocado", *_BOOTSTRAP, "--vt-type", vt_type]
    done = run_to_end(command, environment=whole)
    said = done.stdout + done.stderr
    if missing := sorted(set(_MISSING.findall(said))):
        raise InputError(f"--vt-type {vt_type}: avocado-vt needs {', '.join(missing)}: not installed")
    if done.returncode != 0:
        raise InputError(f"--vt-type {vt_type}: avocado vt-bootstrap failed: {' '.join(said.split())[-500:]}")
    return whole


def vt_options(vt_type: str) -> list[str]:
    """Return the options of ``avocado run`` for tests of ``vt_type``, with the emulator that guests of ours have, too.

    By itself avocado-vt looks for qemu-kvm and kvm in PATH. Raises InputError where the emulator is set to none.
    """
    board = BOARDS.get(platform.machine())
    emulator = installed_emulator(board) if board else None
    return ["--vt-type", vt_type, *(["--vt-qemu-bin", emulator] if emulator else [])]


def _register(directory: Path, providers: Path) -> None:
    inis = sorted(directory.glob("*.ini"))
    if len(inis) != 1:
        raise InputError(
            f"{directory.absolute()}: expected one *.ini of a test provider, found {len(inis)}: run in tests/vt"
        )
    ini = configparser.ConfigParser()
    try:
        ini.read_string(inis[0].read_text(encoding="utf-8"), source=str(inis[0]))
        ini.set("provider", "uri", f"file://{directory.absolute()}")
    except (OSError, ValueError, configparser.Error) as error:
        raise InputError(f"{inis[0]}: {error}") from error
    # it must not be empty: avocado-vt takes that for a bootstrap that is missing
    (providers / "downloads" / "none").mkdir(parents=True)
    with (providers / inis[0].name).open("w", encoding="utf-8") as file:
        ini.write(file)


def _environment(home: Path) -> dict[str, str]:
    return {
        # where Avocado finds its configuration: avocado-vt looks for its data before it reads options
        "HOME": str(home),
        "VIRTUAL_ENV": str(home),
        run_settings.CACHE: str(cache_directory()),
        # aexpect looks for its helper there
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
