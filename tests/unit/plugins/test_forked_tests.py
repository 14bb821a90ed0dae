"""Tests that are forks of Avocado: they end as those do that it starts, and nothing of it is left in them."""

import json
import subprocess
import sys
from pathlib import Path

TESTS = """\
import logging, os, signal, sys, time
from avocado import Test

class Cases(Test):
    timeout = 5

    def test_is_a_fork(self):
        # nothing was imported by it alone
        assert "hugepage_qa.plugins.avocado_test" in sys.modules
        assert "forked_tests" in open(f"/proc/{os.getppid()}/cmdline").read()

    def test_begins_anew(self):
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert os.readlink("/proc/self/fd/1") == "/dev/null"
        print("printed")
        logging.getLogger("other").warning("logged once")

    def test_fails(self):
        self.fail("so it is")

    def test_ends_without_a_word(self):
        os._exit(3)

    def test_hangs(self):
        time.sleep(300)
"""
STATUS = {
    "is_a_fork": "PASS",
    "begins_anew": "PASS",
    "fails": "FAIL",
    "ends_without_a_word": "ERROR",
    "hangs": "INTERRUPTED",
}


def test_forked_tests_end_as_others_do(tmp_path: Path) -> None:
    (tmp_path / "cases.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "hugepage_qa.plugins.forked_tests", "run"]
    options = ["--max-parallel-tasks", "1", "--disable-sysinfo", "--job-results-dir", str(tmp_path / "jobs")]
    done = subprocess.run([*command, *options, "cases.py"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 9, done.stdout + done.stderr  # AVOCADO_TESTS_FAIL, AVOCADO_JOB_INTERRUPTED
    job = tmp_path / "jobs" / "latest"
    tests = json.loads((job / "results.json").read_text())["tests"]
    assert {test["name"].partition(".test_")[2]: test["status"] for test in tests} == STATUS
    anew = next(Path(test["logdir"]) for test in tests if test["name"].endswith("anew"))
    assert "printed" in (anew / "debug.log").read_text()
    assert (job / "full.log").read_text().count("logged once") == 1
    assert not [line for line in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(line)]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
