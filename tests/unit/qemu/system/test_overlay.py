"""The files that a bare root gets."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from hugepage_qa.qemu.system import root_layout as module
from hugepage_qa.qemu.system.platforms import find_platform
from hugepage_qa.qemu.system.root_layout import FINISH, ROOT_PARTUUID, overlay

PLATFORM = find_platform("x86_64")
KEY = "ssh-ed25519 AAAA lab\n"


@pytest.fixture
def entries() -> dict[str, tarfile.TarInfo]:
    return {entry.name: entry for entry in archive().getmembers()}


def archive(key: str = KEY, sources: str = "types: deb\n", authorities: str = "") -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(overlay(PLATFORM, key, sources, authorities)))


def text(name: str) -> str:
    file = archive().extractfile(name)
    assert file is not None
    return file.read().decode()


def test_same_input_gives_the_same_bytes() -> None:
    assert overlay(PLATFORM, KEY, "a", "") == overlay(PLATFORM, KEY, "a", "")
    assert overlay(PLATFORM, KEY, "a", "") != overlay(PLATFORM, KEY, "b", "")
    assert overlay(PLATFORM, KEY, "a", "") != overlay(PLATFORM, "other", "a", "")


def test_everything_belongs_to_root(entries: dict[str, tarfile.TarInfo]) -> None:
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}
    assert not [name for name, entry in entries.items() if not entry.issym() and entry.mode & 0o022]


def test_only_the_key_opens_the_machine(entries: dict[str, tarfile.TarInfo]) -> None:
    assert text("root/.ssh/authorized_keys") == KEY
    assert (entries["root/.ssh"].mode, entries["root/.ssh/authorized_keys"].mode) == (0o700, 0o600)
    assert "PasswordAuthentication no" in text("etc/ssh/sshd_config.d/lab.conf")
    assert "etc/shadow" not in entries


def test_root_is_mounted_by_the_partition_of_the_layout() -> None:
    assert text("etc/fstab").startswith(f"PARTUUID={ROOT_PARTUUID} / ext4 ")


def test_finishing_script_is_whole(entries: dict[str, tarfile.TarInfo]) -> None:
    name = FINISH.removeprefix("/")
    assert entries[name].mode == 0o755
    assert "target=x86_64-efi" in text(name)
    assert "@" not in text(name)


@pytest.mark.parametrize("script", ["finish.sh", "apt-file.sh"])
def test_scripts_are_well_formed(script: str) -> None:
    path = Path(module.__file__).with_name(script)
    subprocess.run(["/bin/bash", "-n", str(path)], check=True)


def test_timers_that_change_a_running_test_are_masked(entries: dict[str, tarfile.TarInfo]) -> None:
    for timer in ("apt-daily.timer", "apt-daily-upgrade.timer"):
        assert entries[f"etc/systemd/system/{timer}"].linkname == "/dev/null"


def test_authorities_of_the_host_are_trusted_by_apt_and_pip() -> None:
    names = archive(authorities="PEM").getnames()
    assert {"etc/ssl/certs/ca-certificates.crt", "etc/pip.conf"} <= set(names)
    assert "etc/ssl/certs/ca-certificates.crt" not in archive().getnames()
