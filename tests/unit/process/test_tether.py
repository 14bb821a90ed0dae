"""Where and as whom a program starts: mounts, user, control group; and what it says when it cannot."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hugepage_qa.process import tether
from hugepage_qa.process.child import PrivateMounts

TETHER = str(tether.__file__)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root")


def run(
    script: str,
    *,
    parent: int | None = None,
    mounts: str = "",
    private: PrivateMounts | None = None,
    environment: dict[str, str] | None = None,
    **settings: object,
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` as the program; the machine that it is started on has ``mounts``, commands of a shell."""
    document = {
        "parent": os.getpid() if parent is None else parent,
        "death_signal": signal.SIGKILL,
        "control_group": None,
        "user": None,
        "mounts": None if private is None else private.to_json(),
        **settings,
    }
    command = [sys.executable, "-I", "-S", TETHER, json.dumps(document), "sh", "-c", script]
    if mounts:
        command = ["unshare", "--mount", "/bin/sh", "-ec", f'{mounts}; exec "$@"', "sh", *command]
    environment = environment or {"PATH": os.defpath}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@as_root
def test_hidden_and_kept(tmp_path: Path) -> None:
    kept = tmp_path / "var" / "scratch"
    kept.mkdir(parents=True)
    done = run(
        f"echo mine >{kept}/file; echo lost >{tmp_path}/var/file; cat {tmp_path}/var/file",
        private=PrivateMounts(hidden=[str(tmp_path / "var"), str(tmp_path / "not-there")], kept=[str(kept)]),
    )
    assert (done.returncode, done.stdout) == (0, "lost\n"), done.stderr
    assert (kept / "file").read_text() == "mine\n"
    assert not (tmp_path / "var" / "file").exists()


@as_root
def test_a_file_is_replaced_for_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "ours").write_text("ours")
    bound = {str(tmp_path / "theirs"): str(tmp_path / "ours")}
    done = run(f"cat {tmp_path}/theirs", private=PrivateMounts(bound=bound))
    assert done.stdout == "ours", done.stderr
    assert (tmp_path / "theirs").read_text() == "theirs"


@as_root
def test_control_groups_cannot_be_seen() -> None:
    done = run("pwd; cat /proc/self/mounts", private=PrivateMounts())
    assert done.returncode == 0
    assert done.stdout.startswith("/\n")
    assert not [line for line in done.stdout.splitlines()[1:] if line.split()[2] in ("cgroup", "cgroup2")]


@as_root
def test_a_hugetlbfs_below_a_hidden_directory_is_gone_and_one_below_a_kept_directory_is_not(tmp_path: Path) -> None:
    """A daemon that reads of one that it cannot see does not come up."""
    hidden, kept = tmp_path / "run", tmp_path / "run" / "scratch"
    (hidden / "huge").mkdir(parents=True)
    (kept / "huge").mkdir(parents=True)
    mounts = f"mount -t hugetlbfs none {hidden}/huge; mount -t hugetlbfs none {kept}/huge"
    private = PrivateMounts(hidden=[str(hidden)], kept=[str(kept)])
    done = run("cat /proc/self/mounts", mounts=mounts, private=private)
    assert done.returncode == 0, done.stderr
    points = [line.split()[1] for line in done.stdout.splitlines() if line.split()[2] == "hugetlbfs"]
    # once: it could not be unmounted where it is listed and covered
    assert [point for point in points if Path(point).is_relative_to(tmp_path)] == [f"{kept}/huge"]


@as_root
def test_a_hugetlbfs_that_is_not_wanted_is_gone_wherever_it_is(tmp_path: Path) -> None:
    """systemd mounts one at /dev/hugepages, and another run has its own beside ours."""
    ours, *others = (tmp_path / name for name in ("kept/ours", "kept/theirs", "dev", "hidden/theirs"))
    for point in (ours, *others):
        point.mkdir(parents=True)
    mounts = "; ".join(f"mount -t hugetlbfs none {point}" for point in (ours, *others))
    private = PrivateMounts(hidden=[str(tmp_path / "hidden")], kept=[str(tmp_path / "kept")], pages=[str(ours)])
    done = run("cat /proc/self/mounts", mounts=mounts, private=private)
    assert done.returncode == 0, done.stderr
    points = [line.split()[1] for line in done.stdout.splitlines() if line.split()[2] == "hugetlbfs"]
    assert points == [str(ours)]


def test_a_parent_that_has_gone() -> None:
    done = run("echo started", parent=1)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the parent is gone" in done.stderr


@as_root
def test_what_cannot_be_mounted_is_named(tmp_path: Path) -> None:
    private = PrivateMounts(bound={str(tmp_path / "target"): str(tmp_path / "none")})
    done = run("echo started", private=private)
    assert done.returncode == 126
    assert f"{tmp_path}/target" in done.stderr


@as_root
def test_a_user_has_no_group_of_ours() -> None:
    done = run("id -u; id -G", user=65534)
    assert (done.returncode, done.stdout) == (0, "65534\n65534\n"), done.stderr


def test_a_control_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("echo started", control_group=str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (126, "")
    assert f"{tmp_path}/none/cgroup.procs" in done.stderr


def test_the_environment_is_the_one_that_was_given() -> None:
    """Python adds LC_CTYPE to its own where there is no locale."""
    done = run("env", environment={"PATH": os.defpath, "ODD": "a=b"})
    of_the_shell = ("PWD", "OLDPWD", "SHLVL", "_")
    entries = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: text for name, text in entries.items() if name not in of_the_shell} == {
        "ODD": "a=b",
        "PATH": os.defpath,
    }


def test_signals_that_python_ignores_are_not_ignored() -> None:
    done = run("grep SigIgn /proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    # others may be ignored by what started us
    assert not any(ignored >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ))
