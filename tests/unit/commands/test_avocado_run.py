"""The command "run" with a real Avocado: results for tmt, a table for people, an exit code for scripts."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from hugepage_qa.cases.selection import Selection
from hugepage_qa.commands.avocado_run import run_command, run_references
from hugepage_qa.errors import InputError
from hugepage_qa.machine.kept_file import Repair
from hugepage_qa.process.marks import PREFIX

_TEST = """\
import json
from pathlib import Path
from avocado import Test

class Cases(Test):
    def test_{verdict}(self):
        Path(self.outputdir, "serial.log").write_text("serial")
        self.whiteboard = json.dumps({{"cases": [
            {{"name": "/a/{verdict}", "verdict": "{verdict}", "reason": "why", "log": "serial.log", "seconds": 1}},
        ]}})
        {end}
"""

_ENDS = {
    "pass": ("pass", "pass", 0),
    "known": ("pass", "info", 0),
    "fail": ("self.fail('x')", "fail", 1),
    "error": ("self.error('x')", "error", 3),
    "skip": ("self.cancel('x')", "skip", 2),
}


@pytest.fixture(params=_ENDS)
def verdict(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = str(request.param)
    (tmp_path / "cases.py").write_text(_TEST.format(verdict=name, end=_ENDS[name][0]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return name


#: where the verdict changes nothing else: only after a bad one are files kept
keeps_logs = pytest.mark.parametrize("verdict", ["fail"], indirect=True)


def test_under_tmt(verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data of tmt"
    data.mkdir()
    monkeypatch.setenv("TMT_TEST_DATA", str(data))
    _, result, code = _ENDS[verdict]
    assert run_references(["cases.py"]) == code
    [entry] = yaml.safe_load((data / "results.yaml").read_text(encoding="utf-8"))
    assert (entry["name"], entry["result"], entry["note"]) == (f"/a/{verdict}", result, ["why"])
    assert (data / entry["log"][0]).read_text(encoding="utf-8") == "serial"
    assert not (tmp_path / "home").exists(), "Avocado littered the home directory"


@pytest.fixture
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_at_a_terminal(verdict: str, tmp_path: Path, short_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMT_TEST_DATA", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(short_directory))
    with (tmp_path / "out").open("w", encoding="utf-8") as out:
        code = run_references(["cases.py"], console=Console(file=out, width=120))
    assert code == _ENDS[verdict][2]
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert f"/a/{verdict}" in text
    assert ("logs: " in text) == (verdict in ("fail", "error"))
    kept = list(short_directory.iterdir())
    assert len(kept) == (verdict in ("fail", "error"))
    assert not any(path.name.startswith(PREFIX) for path in kept), "what is kept looks like what a run forgot"


@keeps_logs
@pytest.mark.usefixtures("verdict")
def test_a_long_name_of_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Avocado would wait for ever for a server whose socket it cannot make."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    monkeypatch.setenv("TMT_TEST_DATA", str(tmp_path))
    run_references(["cases.py"])
    assert (tmp_path / "results.yaml").exists()


def test_a_reference_to_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMT_TEST_DATA", str(tmp_path))
    assert run_references(["--no-such-option"]) == 3
    entries = yaml.safe_load((tmp_path / "results.yaml").read_text(encoding="utf-8"))
    assert {entry["result"] for entry in entries} == {"error"}


def test_no_reference_is_an_error_of_input() -> None:
    with pytest.raises(InputError, match="no test named"):
        run_references([])


@keeps_logs
@pytest.mark.usefixtures("verdict")
def test_results_with_no_place_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMT_TEST_DATA", "/no/such/directory")
    with pytest.raises(InputError, match="TMT_TEST_DATA"):
        run_references(["cases.py"])


def test_what_keeps_a_test_from_running_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("process 7 has the machine: wait for its end")

    monkeypatch.setattr("hugepage_qa.commands.avocado_run.protected_machine", refuse)
    monkeypatch.setenv("TMT_TEST_DATA", str(tmp_path))
    done = CliRunner().invoke(run_command, ["--change-machine", "cases.py"])
    assert isinstance(done.exception, InputError)
    (entry,) = yaml.safe_load((tmp_path / "results.yaml").read_text(encoding="utf-8"))
    assert (entry["name"], entry["result"]) == ("/", "error")
    assert entry["note"] == ["process 7 has the machine: wait for its end"]


def test_help_names_the_variables() -> None:
    result = CliRunner().invoke(run_command, ["--help"])
    assert result.exit_code == 0
    assert "HUGEPAGE_QA_KERNEL" in result.output
    assert "Example:" in result.output


# stands in for hugepage_qa.cases.boot.boot_matrix: no machine is booted
_STUBS = """\
import contextlib, os, sys, types
from hugepage_qa.cases.result import Result, Verdict

class Matrix(contextlib.nullcontext):
    def __init__(self, architecture, settings):
        super().__init__(self)
        self.evidence = f"{architecture} {settings.append}"

    def named_cases(self, groups):
        return "named"

    def run_random(self, count, seed):
        return self.run("random")

    def run(self, group):
        for number, verdict in enumerate(os.environ["VERDICTS"].split()):
            if verdict == "raise":
                raise RuntimeError("boom")
            yield Result(f"/{group}/{number}", Verdict(verdict), (verdict,), 1.0, self.evidence)

run = types.ModuleType("hugepage_qa.cases.boot.boot_matrix")
run.Settings = types.SimpleNamespace
run.Matrix = Matrix
sys.modules[run.__name__] = run
"""


@pytest.mark.parametrize(
    ("verdicts", "results"),
    [
        ("pass known skip", ["pass", "info", "skip"]),
        ("pass fail", ["pass", "fail"]),
        ("fail error", ["fail", "error"]),
        ("skip skip", ["skip", "skip"]),
        ("pass raise", ["pass", "error"]),
        ("raise", ["error"]),
        ("pass pass", ["pass", "pass"]),
        # the groups that were asked for have no case for the architecture
        ("", ["skip"]),
    ],
)
def test_boot_parameters_with_a_pretended_matrix(verdicts: str, results: list[str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_STUBS, encoding="utf-8")
    test = Path(__file__).parents[2] / "boot" / "boot_parameters.py"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "TMT_TEST_DATA": str(tmp_path),
        "HUGEPAGE_QA_CACHE": str(tmp_path / "cache"),
        "HUGEPAGE_QA_ARCH": "s390x",
        "HUGEPAGE_QA_APPEND": "quiet",
        "VERDICTS": verdicts,
    }
    kind = "random" if verdicts == "pass pass" else "named"
    code = "import sys; from hugepage_qa.commands import avocado_run as run; sys.exit(run.run_references(sys.argv[1:]))"
    command = [sys.executable, "-c", code, f"{test}:BootParameters.test_{kind}"]
    subprocess.run(command, env=environment, check=False, capture_output=True)
    entries = yaml.safe_load((tmp_path / "results.yaml").read_text(encoding="utf-8"))
    assert [entry["result"] for entry in entries] == results
    assert ("raise" in verdicts) == ("boom" in str(entries[-1].get("note")))
    cases = [entry for entry in entries if entry["name"].startswith(f"/{kind}/")]
    assert all((tmp_path / entry["log"][0]).read_text(encoding="utf-8") == "s390x quiet" for entry in cases)


@pytest.mark.parametrize("repairs", [(), (Repair("vm/swappiness", "60", "1", "1"),)], ids=["put back", "not put back"])
def test_a_run_that_changes_the_machine(
    repairs: tuple[Repair, ...], tmp_path: Path, short_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be put back is an error, however well the cases went; nothing is made that no journal knows."""
    (tmp_path / "cases.py").write_text(_TEST.format(verdict="pass", end="pass"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # where logs of a bad end are kept
    monkeypatch.setattr("tempfile.tempdir", str(short_directory))
    made = []

    def make_scratch(parent: Path) -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="hugepage-qa-", dir=parent)))
        return made[0]

    @contextmanager
    def protected(purpose: str) -> Iterator[SimpleNamespace]:
        assert purpose == "hugepage-qa run cases.py"
        journal = SimpleNamespace(make_scratch=make_scratch)
        # not tmp_path: Avocado waits for ever when the path of its socket is too long
        with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
            yield SimpleNamespace(journal=journal, scratch=Path(scratch), put_back=lambda: repairs)
        shutil.rmtree(made[0])

    monkeypatch.setattr("hugepage_qa.commands.avocado_run.protected_machine", protected)
    console = Console(record=True, width=200)
    assert run_references(["cases.py"], change_machine=True, console=console) == (3 if repairs else 0)
    assert not any(directory.exists() for directory in made)
    text = console.export_text()
    assert "/a/pass" in text
    assert ("NOT put back: wanted 60, found 1" in text) == bool(repairs)


# stands in for the machine: nothing happens on it. Python goes on when this fails, and would go on to the real one
_STILL = """\
import os
try:
    from contextlib import nullcontext
    from hugepage_qa.plugins import avocado_test
    from tests.unit.cases.still_machine import StillMachine
    avocado_test.real_machine = lambda _scratch: nullcontext(StillMachine())
except BaseException:
    os._exit(70)
"""
_CASES = """\
from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.plugins.avocado_test import LiveTest

AREA = Area("{name}", sizes=Sizes.ONCE)

@AREA.case("it is so", "nowhere")
def good(live): ...

@AREA.case("it is not so", "nowhere")
def bad(live):
    live.expect("a fact", 1, 2)

@AREA.case("it is so again", "nowhere")
def later(live): ...

class {name}(LiveTest):
    def test(self):
        self.run_area(AREA)
"""


@pytest.mark.parametrize(
    ("options", "verdicts"),
    [
        ({}, {"good": "pass", "bad": "fail", "later": "pass"}),
        ({"exit_first": True}, {"good": "pass", "bad": "fail", "later": "skip"}),
        ({"selection": Selection(("good", "/*/later"))}, {"good": "pass", "later": "pass"}),
    ],
    ids=["all", "exitfirst", "chosen"],
)
@pytest.mark.parametrize("files", [["One.py"], ["One.py", "Two.py"]], ids=["one file", "two files"])
def test_what_a_run_has(options: dict[str, object], verdicts: dict[str, str], files: list[str], tmp_path: Path) -> None:
    for name in ("One", "Two"):
        (tmp_path / f"{name}.py").write_text(_CASES.format(name=name), encoding="utf-8")
    (tmp_path / "sitecustomize.py").write_text(_STILL, encoding="utf-8")
    root = Path(__file__).parents[3]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root), str(root / "libs")]),
        "HOME": str(tmp_path / "home"),
        "TMT_TEST_DATA": str(tmp_path),
    }
    code = (
        "import sys; from hugepage_qa.commands import avocado_run as run; from hugepage_qa.cases.selection import *;"
        f"sys.exit(run.run_references({files!r}, **{options!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=False, capture_output=True, text=True, cwd=tmp_path
    )
    entries = yaml.safe_load((tmp_path / "results.yaml").read_text(encoding="utf-8"))
    found = {entry["name"]: entry["result"] for entry in entries}
    expected = {f"/{file.removesuffix('.py')}/{case}": verdict for file in files for case, verdict in verdicts.items()}
    if options.get("exit_first"):
        expected |= {name: "skip" for name in expected if name.startswith("/Two/")}
    assert found == expected, done.stdout + done.stderr
    assert done.returncode == ("fail" in found.values())
    # one line as each ended, and what was not run is one line at the end
    lines = done.stdout.splitlines()
    # Avocado writes a line of its own in pieces, between which ours may come
    assert sum("pass  /One/good " in line for line in lines) == 1
    not_run = [line for line in lines if "not run" in line]
    assert len(not_run) == ("exit_first" in options)


def test_a_name_that_is_wrong_ends_a_run_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "One.py").write_text(_CASES.format(name="One"), encoding="utf-8")
    monkeypatch.setattr("hugepage_qa.commands.avocado_run.protected_machine", lambda *_: pytest.fail("it began"))
    done = CliRunner().invoke(run_command, ["--change-machine", "--case", "goud", str(tmp_path / "One.py")])
    assert isinstance(done.exception, InputError)
    assert str(done.exception) == "--case goud: expected the name of a case, or a pattern of names, such as good"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("hugepage_qa.commands.avocado_run", {"avocado", "hypothesis", "jsonschema", "libvirt", "elftools"}),
        ("hugepage_qa.plugins.avocado_test", {"hypothesis", "libvirt", "yaml"}),
    ],
)
def test_what_takes_long_to_import_is_imported_where_it_is_used(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not absent & set(done.stdout.split())
