"""Real captures of probe machines: ``captures/<name>.json.gz``, a JSON object from path to text."""

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from hugepage_qa.kernel.tree import CapturedTree

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the parameter ``any_capture`` once for each capture."""
    if "any_capture" in metafunc.fixturenames:
        metafunc.parametrize("any_capture", [pytest.param(load_capture(name), id=name) for name in capture_names()])
