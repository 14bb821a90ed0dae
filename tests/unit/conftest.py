"""Real captures of probe machines: ``captures/<name>.json.gz``, a JSON object from path to text; tiny kernels."""

import gc
import gzip
import json
import signal
import struct
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.installed_emulator import installed_emulator

# a busy machine is slow, and that is no failure
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# a shell starts jobs in the background with SIGINT ignored, nohup with SIGHUP: programs under test would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

CAPTURES = Path(__file__).parent / "captures"
_SUFFIX = ".json.gz"


@cache
def load_capture(name: str) -> CapturedTree:
    """Return the files of the capture ``name``."""
    with gzip.open(CAPTURES / f"{name}{_SUFFIX}", "rt", encoding="utf-8") as stream:
        return CapturedTree(json.load(stream))


def capture_names() -> list[str]:
    """Return the names of all stored captures."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in CAPTURES.glob(f"*{_SUFFIX}"))


@pytest.fixture
def capture() -> Callable[[str], CapturedTree]:
    """A function from the name of a capture to its tree."""
    return load_capture


def x86_image(release: str) -> bytes:
    """Return the least that counts as an x86 kernel of ``release``."""
    data = bytearray(0x600)
    data[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", data, 0x20E, 0x300)
    data[0x500 : 0x500 + len(release)] = release.encode()
    return bytes(data)


@pytest.fixture
def bzimage() -> Callable[[str], bytes]:
    """Return bzimage(release): the least that counts as an x86 kernel of that release."""
    return x86_image


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage in what stays to the end: the tests, the records, and the modules that were imported."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what boots machines, so that several workers end at the same time with what takes a moment each."""
    items.sort(key=lambda item: item.get_closest_marker("boots") is None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that boots machines where their emulator is not installed."""
    if item.get_closest_marker("boots") is None:
        return
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    board = find_board(str(parameters.get("architecture", "x86_64")))
    if installed_emulator(board) is None:
        pytest.skip(f"{board.qemu} is not installed")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the parameter ``any_capture`` once for each capture."""
    if "any_capture" in metafunc.fixturenames:
        metafunc.parametrize("any_capture", [pytest.param(load_capture(name), id=name) for name in capture_names()])
