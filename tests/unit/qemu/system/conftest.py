"""A mmdebstrap that makes a tiny root, and the platform of the tests."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hugepage_qa.qemu.system.platforms import Platform, find_platform

# the second last argument is the root; MMDEBSTRAP_LOG remembers all of them
MMDEBSTRAP = """
[ "$1" = --unshare-helper ] && shift && exec "$@"
printf '%s\\n' "$@" >>"$MMDEBSTRAP_LOG"
if [ -n "$MMDEBSTRAP_FAILURE" ]; then
    echo "I: working" >&2
    echo "E: $MMDEBSTRAP_FAILURE" >&2
    exit 1
fi
case " $* " in *" --simulate "*)
    echo "Inst libc6 ($MMDEBSTRAP_VERSION Debian:12 [amd64]) []" >&2
    echo "Inst linux-image-6.1 (6.1-2 Debian:12 [amd64])" >&2
    exit ;;
esac
root=${@: -2:1}
mkdir -p "$root"/{boot,etc/ssh,etc/apt/sources.list.d,root,usr/local/bin,usr/local/sbin}
for kernel in $MMDEBSTRAP_KERNELS; do
    echo "kernel $kernel" >"$root/boot/vmlinuz-$kernel"
    echo "initramfs $kernel" >"$root/boot/initrd.img-$kernel"
done
echo "ssh-ed25519 HOST" >"$root/etc/ssh/ssh_host_ed25519_key.pub"
"""


@dataclass(frozen=True)
class FakeMmdebstrap:
    """What the next calls do, and what the calls before were."""

    log: Path
    monkeypatch: pytest.MonkeyPatch

    def offers(self, version: str = "2.36-9", kernels: str = "6.1.0-1-amd64", failure: str = "") -> None:
        for name, value in (("VERSION", version), ("KERNELS", kernels), ("FAILURE", failure)):
            self.monkeypatch.setenv(f"MMDEBSTRAP_{name}", value)

    def arguments(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def builds(self) -> int:
        """How often a root was really made."""
        return self.arguments().count("--format=directory") - self.arguments().count("--simulate")


@pytest.fixture
def mmdebstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[Path, str, str], None]
) -> FakeMmdebstrap:
    install(tmp_path / "bin", "mmdebstrap", MMDEBSTRAP)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    fake = FakeMmdebstrap(tmp_path / "mmdebstrap.log", monkeypatch)
    monkeypatch.setenv("MMDEBSTRAP_LOG", str(fake.log))
    fake.offers()
    return fake


@pytest.fixture
def platform() -> Platform:
    return find_platform("x86_64")
