"""A search leaves nothing where the user is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEARCHES = {
    "boot": "from tests.unit.cases.boot.test_random_boots import draw, target; draw(target(), 300, 1)",
    "pool": "from tests.unit.cases.random.targets import Starts, programs; list(programs(Starts(), 'traces', 3))",
}


@pytest.mark.parametrize("search", SEARCHES)
def test_nothing_is_left_in_the_working_directory(search: str, tmp_path: Path) -> None:
    # Hypothesis settles its directory when it is imported
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-c", SEARCHES[search]], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
