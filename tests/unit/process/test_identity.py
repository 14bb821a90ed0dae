"""Programs that need no root run without it, and what root's programs make is known by its group."""

import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hugepage_qa.process.identity import (
    Identity,
    cache_of,
    choose_identity,
    give,
    make_home,
)
from hugepage_qa.process.marks import GROUP

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that only root can look into, as the home of root is."""
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "bzImage").write_text("kernel")
    (tmp_path / "closed" / "bzImage").chmod(0o600)
    return tmp_path / "closed"


def run(identity: Identity, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*identity.words, *command], capture_output=True, text=True, check=False)


def evaluate(identity: Identity, expression: str) -> str:
    done = run(identity, sys.executable, "-c", f"import os; print({expression})")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_is_not_root_stays_who_he_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_identity(tmp_path, needs_root=True) == choose_identity(tmp_path, needs_root=False) == Identity()


@root_only
def test_without_root_nothing_of_root_can_be_written(tree: Path) -> None:
    identity = choose_identity(tree, needs_root=False)
    assert identity.shortfall == ""
    assert evaluate(identity, "(os.getresuid(), os.getresgid(), os.getgroups())") == str(
        ((NOBODY,) * 3, (GROUP,) * 3, [])
    )
    for path in ("/proc/sys/vm/nr_hugepages", "/etc/passwd", str(tree / "bzImage")):
        assert run(identity, "sh", "-c", 'echo 0 >>"$1"', "sh", path).returncode != 0
    for command in (("mount", "-t", "tmpfs", "none", "/mnt"), ("touch", str(tree / "new")), ("kill", "-0", "1")):
        assert run(identity, *command).returncode != 0


@root_only
def test_without_root_a_kernel_of_root_can_be_read(tree: Path) -> None:
    identity = choose_identity(tree, needs_root=False)
    assert evaluate(identity, f"open({str(tree / 'bzImage')!r}).read()") == "kernel"
    assert evaluate(identity, f"os.access({str(tree / 'bzImage')!r}, os.R_OK)") == "True"


@root_only
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_without_root_kvm_opens_as_it_does_for_root(mode: int, tmp_path: Path) -> None:
    """Another device is taken for KVM, one that every machine has."""
    device = tmp_path / "kvm"
    os.mknod(device, stat.S_IFCHR, os.makedev(1, 3))
    device.chmod(mode)
    identity = choose_identity(tmp_path, needs_root=False, kvm=device)
    assert identity.shortfall == ""
    assert evaluate(identity, f"os.open({str(device)!r}, os.O_RDWR) > 0") == "True"
    assert (device.stat().st_uid, stat.S_IMODE(device.stat().st_mode)) == (0, mode)


@root_only
def test_a_privilege_does_not_come_back(tmp_path: Path) -> None:
    identity = choose_identity(tmp_path, needs_root=False)
    status = run(identity, "cat", "/proc/self/status").stdout
    assert "NoNewPrivs:\t1\n" in status
    read_all = f"{1 << 2:016x}"
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert f"{name}:\t{read_all}\n" in status


@root_only
def test_root_stays_root_with_a_group_of_ours(tmp_path: Path) -> None:
    identity = choose_identity(tmp_path, needs_root=True)
    assert (identity.user, identity.shortfall) == (None, "")
    assert run(identity, "sh", "-c", 'umask 0; : >"$1/file"; mkdir "$1/made"', "sh", str(tmp_path)).returncode == 0
    for name in ("file", "made"):
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_gid) == (0, GROUP)


@root_only
@pytest.mark.parametrize("needs_root", [True, False])
def test_where_it_is_forbidden_all_goes_on_and_says_so(
    needs_root: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setpriv", "unshare"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'setresgid failed: Operation not permitted' >&2\nexit 127\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    identity = choose_identity(tmp_path, needs_root=needs_root)
    assert (identity.words, identity.user) == ((), None)
    assert identity.shortfall.endswith("setresgid failed: Operation not permitted")
    (tmp_path / "setpriv").unlink()
    assert "setpriv is not installed" in choose_identity(tmp_path, needs_root=True).shortfall


def test_a_cache_has_what_root_has_downloaded(tmp_path: Path) -> None:
    cache, identity = tmp_path / "cache", Identity((), os.getuid() or NOBODY)
    for name in ("packages/content/1/vmlinuz", "packages/names/amd64/x.json", "packages/roots/amd64/apt.conf"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).touch()
    assert cache_of(Identity(), cache) == cache
    if os.geteuid() != 0:
        pytest.skip("only root gives files to others")
    own = cache_of(identity, cache)
    assert sorted(str(path.relative_to(own)) for path in own.rglob("*") if path.is_file()) == [
        "packages/content/1/vmlinuz",
        "packages/names/amd64/x.json",
    ]
    assert {path.stat().st_uid for path in (own, *own.rglob("*"))} == {NOBODY}
    assert {path.stat().st_uid for path in (cache, cache / "packages/content")} == {0}
    (own / "packages/content/1/vmlinuz").unlink()
    assert not (cache_of(identity, cache) / "packages/content/1/vmlinuz").exists()


@root_only
def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "link").symlink_to(tmp_path / "outside")
    give(tmp_path / "given", NOBODY)
    assert (tmp_path / "outside").stat().st_uid == 0
    assert (tmp_path / "given" / "link").lstat().st_uid == NOBODY


def test_tmt_is_set_up_as_root_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config/tmt").mkdir(parents=True)
    (tmp_path / ".config/tmt/link.fmf").touch()
    (tmp_path / "scratch").mkdir()
    assert (make_home(tmp_path / "scratch") / ".config/tmt/link.fmf").exists()
