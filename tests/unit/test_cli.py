"""The command line: what people type, and what they get wrong."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from tests.unit.commands.run_command import Command

from hugepage_qa import cli
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel

RunCli = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> RunCli:
    """Run the command and return exit code, standard output and standard error."""
    command = Command(capsys, monkeypatch)
    return command(*arguments), command.output, command.errors


def test_a_long_message_is_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong may be megabytes of a file."""
    code, _, said = run(capsys, monkeypatch, "boot", "x", "--memory", "9" * 100_000)
    assert (code, len(said.splitlines()), len(said) < 1100) == (3, 1, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("boot", "x", "--arch", "vax"), "vax"),
        (("predict", "x", "--cpu", "pentium"), "pentium"),
        (("boot", "x", "--memory", "2X"), "2X"),
        (("boot", "x", "--memory", "0,0"), "0,0"),
        (("boot", "x", "--memory", ""), "size ''"),
        (("boot", "x", "--kernel", "/no/such/kernel"), "/no/such/kernel"),
        (("boot", "x", "--kernel", __file__), "test_cli.py"),
        (("boot", "x", "--kernel", "/"), "/"),
        (("predict", "x", "--version", "new"), "new"),
        (("predict", "x", "--kernel", __file__), "test_cli.py"),
        (("predict", f"hugepages={'9' * 5000}"), "command line of 5010 bytes"),
        (("boot-matrix", "--group", "nosuch"), "nosuch"),
        (("boot-matrix", "--no-named"), "--no-named"),
        (("boot-matrix", "--random", "-1"), "-1"),
        (("facts", "--root", "/no/such/root"), "/no/such/root"),
        (("nosuch",), "nosuch"),
        (("boot",), "COMMAND_LINE"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    named: str,
) -> None:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path))
    # before anything is downloaded
    monkeypatch.setattr(
        "hugepage_qa.cases.boot.boot_matrix.distribution_kernel", lambda *_, **__: pytest.fail("it went on")
    )
    code, _, error = run(capsys, monkeypatch, *arguments)
    assert code == 3
    assert named in error
    assert len(error.strip().splitlines()) == 1


def test_a_cache_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(file / "cache"))
    code, _, error = run(capsys, monkeypatch, "boot", "x")
    assert code == 3
    assert str(file) in error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("cannot read from timed out object"), "cannot read from timed out object"),
        (TimeoutError(), "TimeoutError"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), "/tmp/x: No space left on device"),
    ],
)
def test_an_error_of_the_system_says_what_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: OSError, told: str
) -> None:
    def fail(*_: object, **_named: object) -> NoReturn:
        raise error

    monkeypatch.setattr(cli.hugepage_qa, "main", fail)
    assert run(capsys, monkeypatch, "facts") == (3, "", f"hugepage-qa: {told}\n")


@pytest.mark.parametrize("words", ["predict hugepages=1", "facts", "facts --json", "--help"])
def test_an_output_that_takes_no_more(words: str) -> None:
    command = [sys.executable, "-m", "hugepage_qa", *words.split()]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "hugepage-qa: output: No space left on device\n")


def test_predict_names_rules(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    code, output, _ = run(capsys, monkeypatch, "predict", "hugepages=0:3,1:5", "--memory", "2G,2G")
    assert code == 0
    for text in ("node1/hugepages-2048kB/nr_hugepages", "node-form", "hugetlbpage.rst"):
        assert text in output


def test_facts_of_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, _ = run(capsys, monkeypatch, "facts", "--json")
    assert code == 0
    facts = json.loads(output)
    assert facts["release"] == os.uname().release
    assert facts["observations"]["meminfo/MemTotal"] > 0


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    code, output, _ = run(capsys, monkeypatch, command, "--help")
    assert code == 0
    assert "Example: " in output


@pytest.mark.boots
def test_boot_shows_prediction_fact_and_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = "hugepagesz=1G hugepages=1 hugepagesz=2M hugepages=0:3,1:5"
    code, output, _ = run(capsys, monkeypatch, "boot", words, "--memory", "2G,2G")
    assert code == 0
    assert "node1/hugepages-2048kB/nr_hugepages" in output
    assert output.strip().splitlines()[-1].startswith("pass")


@pytest.mark.boots
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    # with nothing cached the download of the kernel may take long, and is not what is waited for
    find_kernel("x86_64", Settings())
    mark = f"ctrl_c_test={os.getpid()}"
    command = [str(Path(sys.executable).with_name("hugepage-qa")), "boot-matrix", "--machines", "2", "--append", mark]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 600
    # a machine may have ended by the time one looks again: what was seen once counts
    while not (seen := machines(mark)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if not seen:
        process.kill()
        pytest.fail(f"no machine was started, exit code {process.wait()}: {process.communicate()[1]}")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130
    assert error.strip().splitlines()[-1] == "interrupted"
    assert not machines(mark)
    assert not list(tmp_path.iterdir())


def machines(mark: str) -> set[int]:
    """Return the process ids of emulators whose kernel has ``mark`` on its command line."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (directory / "cmdline").read_text(errors="replace")
            if "-nodefaults" in arguments and mark in arguments:
                found.add(int(directory.name))
    return found
