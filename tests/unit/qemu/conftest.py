"""Fake programs for PATH."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def install() -> Callable[[Path, str, str], None]:
    """Return install(directory, name, script): puts shell script as program name into directory."""

    def put(directory: Path, name: str, script: str) -> None:
        directory.mkdir(exist_ok=True)
        path = directory / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return put
