"""Packages with fake apt, dpkg-deb and dnf: which commands are run, what is kept, what happens without network."""

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu import apt, packages
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.package_archive import kept_name, rpm_commands
from hugepage_qa.qemu.packages import distribution_kernel, kernel_packages, static_busybox

Install = Callable[[Path, str, str], None]
Kernel = Callable[[str], bytes]

SOURCES = """\
# comment
Types: deb deb-src
URIs: http://archive.example/debian
Suites: stable stable-updates
Components: main
Architectures: amd64
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://archive.example/debian-security
Suites: stable-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://vendor.example/apt
Suites: any
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg

Types: deb
URIs: http://off.example/debian
Suites: stable
Components: main
Enabled: no
"""

# indices live in FAKE: FAKE/index/PACKAGE is what apt-cache shows, FAKE/pool/NAME_VERSION what can be downloaded
APT_GET = r"""
echo "apt-get $*" >>"$FAKE/log"
case "$*" in
*update)
    [ ! -e "$FAKE/offline" ] || { echo "E: Failed to fetch http://archive.example No route" >&2; exit 100; }
    root=$(dirname "$2"); touch "$root/lists/x_Packages" ;;
*download*) what="${@: -1}"; cp "$FAKE/pool/${what%%=*}_${what#*=}" "${what%%=*}_${what#*=}_any.deb" && exit
    echo "E: Failed to fetch $what 404 Not Found" >&2; exit 100 ;;
esac
"""
APT_CACHE = 'echo "apt-cache $*" >>"$FAKE/log"; [ -e "$FAKE/offline" ] || cat "$FAKE/index/${@: -1}" 2>/dev/null'


class Distribution:
    """A fake distribution: what its indices and its pool hold."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "index").mkdir(parents=True)
        (root / "pool").mkdir()

    def add(self, name: str, version: str, depends: str = "", files: dict[str, bytes] | None = None) -> None:
        """Add a package; without ``files`` it is in the index but cannot be downloaded."""
        with (self.root / "index" / name).open("a") as index:
            index.write(f"Package: {name}\nVersion: {version}\nDepends: {depends}\nDescription: x\n more: text\n\n")
        if files is not None:
            with tarfile.open(self.root / "pool" / f"{name}_{version}", "w") as archive:
                for path, content in files.items():
                    member = tarfile.TarInfo(path)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))

    @property
    def log(self) -> list[str]:
        return (self.root / "log").read_text().splitlines()


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install, bzimage: Kernel) -> Distribution:
    programs = tmp_path / "bin"
    install(programs, "apt-get", APT_GET)
    install(programs, "apt-cache", APT_CACHE)
    install(programs, "dpkg-deb", 'cat "$2"')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE", str(tmp_path / "fake"))
    etc = tmp_path / "etc"
    (etc / "sources.list.d").mkdir(parents=True)
    (etc / "sources.list.d" / "debian.sources").write_text(SOURCES)
    monkeypatch.setattr(apt, "APT_DIRECTORY", etc)
    monkeypatch.setattr(apt, "_PAUSE", 0.0)
    found = Distribution(tmp_path / "fake")
    found.add("linux-image-cloud-amd64", "6.1.9-1", "linux-image-6.1.0-9-cloud-amd64 (= 6.1.9-1)", {})
    found.add(
        "linux-image-6.1.0-9-cloud-amd64",
        "6.1.9-1",
        "kmod, linux-base (>= 4.3~), initramfs-tools | linux-initramfs-tool",
        {
            "./boot/vmlinuz-6.1.0-9-cloud-amd64": bzimage("6.1.0-9-cloud-amd64"),
            "./boot/config-6.1.0-9-cloud-amd64": b"CONFIG_HUGETLBFS=y\n",
            "./lib/modules/6.1.0-9-cloud-amd64/kernel/big.ko": b"module",
        },
    )
    found.add("busybox-static", "1:1.35", "", {"./bin/busybox": b"BUSYBOX"})
    return found


def get(cache: Path, **options: str) -> tuple[KernelImage, list[str]]:
    said: list[str] = []
    return distribution_kernel("x86_64", cache, report=said.append, **options), said


@pytest.mark.usefixtures("distribution")
def test_kernel_through_its_metapackage(tmp_path: Path) -> None:
    found, _ = get(tmp_path / "cache")
    assert found.release == "6.1.0-9-cloud-amd64"
    assert found.config == {"CONFIG_HUGETLBFS": "y"}
    kept = sorted(file.name for file in found.path.parent.iterdir())
    assert kept == ["config-6.1.0-9-cloud-amd64", "vmlinuz-6.1.0-9-cloud-amd64"], "modules stay behind"
    assert not list((tmp_path / "cache").rglob("*.deb"))


def test_kernel_that_is_spread_over_packages(distribution: Distribution, tmp_path: Path, bzimage: Kernel) -> None:
    version, release = "7.2.1-1", "7.2.1+deb14-amd64"
    distribution.add(
        "linux-image-amd64", version, f"linux-base-amd64 (= {version}), linux-image-{release} (= {version})"
    )
    distribution.add("linux-base-amd64", version, f"linux-base-{release} (= {version})")
    parts = f"dracut, linux-base-{release}, linux-binary-{release} (= {version}), linux-modules-{release} (= {version})"
    distribution.add(f"linux-image-{release}", version, parts, {})
    folder = f"./usr/lib/modules/{release}"
    distribution.add(f"linux-base-{release}", version, "", {f"{folder}/config": b"CONFIG_CMA=y\n"})
    distribution.add(f"linux-binary-{release}", version, "", {f"{folder}/vmlinuz": bzimage(release)})
    modules = {f"{folder}/kernel/fs/{name}/{name}.ko.xz": b"module" for name in ("ext4", "nfs")}
    distribution.add(f"linux-modules-{release}", version, f"kmod, linux-base-{release} (= {version})", modules)
    found, _ = get(tmp_path / "cache", package="linux-image-amd64", suite="sid")
    assert (found.release, found.config) == (release, {"CONFIG_CMA": "y"})
    assert [file.name for file in found.modules] == ["ext4.ko.xz"]


def test_version_that_cannot_be_fetched_gives_way_to_the_one_before(distribution: Distribution, tmp_path: Path) -> None:
    index = distribution.root / "index" / "linux-image-cloud-amd64"
    older = index.read_text()
    index.unlink()
    distribution.add("linux-image-cloud-amd64", "6.1.10-1", "linux-image-6.1.0-10-cloud-amd64 (= 6.1.10-1)", {})
    index.write_text(index.read_text() + older)
    distribution.add("linux-image-6.1.0-10-cloud-amd64", "6.1.10-1")
    found, said = get(tmp_path / "cache")
    assert found.release == "6.1.0-9-cloud-amd64"
    assert any("6.1.10-1 cannot be fetched" in line for line in said)
    assert any("404" in line for line in said), "why is told"


def test_second_call_asks_nobody(distribution: Distribution, tmp_path: Path) -> None:
    first, _ = get(tmp_path / "cache")
    (distribution.root / "log").unlink()
    assert get(tmp_path / "cache") == (first, [])
    assert not (distribution.root / "log").exists()


def test_what_an_older_suite_kept_is_asked_for_again(distribution: Distribution, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as older:
        older.setattr(packages, "CHOICE", b"without modules")
        get(tmp_path / "cache")
    (distribution.root / "log").unlink()
    get(tmp_path / "cache")
    assert any("download" in line for line in distribution.log)


def test_old_answer_serves_without_network(distribution: Distribution, tmp_path: Path) -> None:
    first, _ = get(tmp_path / "cache")
    for file in (tmp_path / "cache").rglob("*"):
        if file.name == "updated" or file.suffix == ".json":
            os.utime(file, (0, 0))
    (distribution.root / "offline").touch()
    second, said = get(tmp_path / "cache")
    assert second == first
    assert any("package index missing" in line for line in said)
    assert any("from the cache" in line for line in said)


def test_no_network_and_no_cache(distribution: Distribution, tmp_path: Path) -> None:
    (distribution.root / "offline").touch()
    wanted = "no package linux-image-cloud-amd64 for amd64 in the suites of this machine, of which an index is missing"
    with pytest.raises(InputError, match=wanted):
        get(tmp_path / "cache")
    assert sum("update" in line for line in distribution.log) == 3, "a mirror in the middle of an update gets time"


def test_all_kernels_of_one_flavour(distribution: Distribution, tmp_path: Path) -> None:
    wanted = [
        f"linux-image-{release}-cloud-amd64" for release in ("6.16.3+deb13", "6.1.0-9", "6.12-rc6", "6.1.0-0.deb11.5")
    ]
    others = ["6.1.0-9-amd64", "6.1.0-9-rt-cloud-amd64", "7.2.6-cloud-amd64-dbg", "7.2.6-cloud-amd64-unsigned"]
    (distribution.root / "index" / "linux-image-").write_text(
        "\n".join([*wanted, "linux-image-cloud-amd64", *(f"linux-image-{one}" for one in others)])
    )
    assert kernel_packages("x86_64", tmp_path / "cache", "sid", report=lambda _: None) == wanted
    assert not any(" download" in line for line in distribution.log), "only what is tried is downloaded"


def test_a_suite_without_kernels_or_apt(
    distribution: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="suite sid: no kernel of the flavour of linux-image-cloud-amd64"):
        kernel_packages("x86_64", tmp_path / "cache", "sid", report=lambda _: None)
    assert distribution.log
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get is not installed"):
        kernel_packages("x86_64", tmp_path / "cache", "sid", report=lambda _: None)


@pytest.mark.usefixtures("distribution")
def test_busybox(tmp_path: Path) -> None:
    assert static_busybox("x86_64", tmp_path / "cache", report=lambda _: None).read_bytes() == b"BUSYBOX"


def test_machine_state_of_apt_is_not_used(distribution: Distribution, tmp_path: Path) -> None:
    get(tmp_path / "cache")
    assert all(line.split()[1] == "-c" for line in distribution.log), "every call has our configuration"
    configuration = next((tmp_path / "cache").rglob("apt.conf")).read_text()
    for name in ("Dir::State", "Dir::State::lists", "Dir::State::status", "Dir::Cache", "Dir::Etc::sourceparts"):
        assert f'{name} "{tmp_path / "cache"}' in configuration
    assert "#clear APT::Update::Post-Invoke;" in configuration, "hooks would touch the machine"


def test_own_sources_only() -> None:
    sources = [fields for fields in apt.parse_stanzas(SOURCES) if fields.get("enabled") != "no"]
    assert [fields["uris"] for fields in apt.select_sources(sources, None)] == [
        "http://archive.example/debian",
        "http://archive.example/debian-security",
    ]
    (sid,) = apt.select_sources(sources, "sid")
    assert (sid["uris"], sid["suites"]) == ("http://archive.example/debian", "sid")
    text = apt.format_sources([sid])
    assert "architectures" not in text and "targets: Packages" in text and "deb-src" not in text


def test_both_source_formats_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://no.example x main\n"
        "deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] http://one.example/debian stable main contrib # why\n"
        "deb-src http://no.example stable main\n"
    )
    (tmp_path / "sources.list.d" / "x.sources").write_text(SOURCES)
    found = apt.read_sources(tmp_path)
    assert [fields["uris"].split("/")[2] for fields in found] == [
        "one.example",
        *["archive.example"] * 2,
        "vendor.example",
    ]
    assert found[0]["components"] == "main contrib"
    assert found[0]["signed-by"] == "/k/debian-archive-keyring.gpg"


def test_a_source_that_holds_its_key_is_written_as_it_was(tmp_path: Path) -> None:
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n -----END PGP PUBLIC KEY BLOCK-----"
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "x.sources").write_text(
        f"Types: deb\nURIs: http://one.example/debian\n# why\nSuites: stable\nSigned-By:{key}\n \t\nTypes: deb\n"
    )
    text = apt.format_sources(apt.select_sources(apt.read_sources(tmp_path), None))
    assert text == (
        f"types: deb\ntargets: Packages\nuris: http://one.example/debian\nsuites: stable\nsigned-by:{key}\n"
    )


def test_machine_without_debian_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no Debian package source"):
        apt.select_sources(apt.read_sources(tmp_path), None)


@pytest.mark.parametrize(
    ("member", "name"),
    [
        ("./boot/vmlinuz-6.1", "vmlinuz-6.1"),
        ("./boot/vmlinux-6.1", "vmlinux-6.1"),
        ("usr/lib/modules/6.1/vmlinuz", "vmlinuz-6.1"),
        ("./lib/modules/6.1/config", "config-6.1"),
        ("./usr/bin/busybox", "busybox"),
        ("/sbin/busybox", "busybox"),
        ("./lib/modules/6.1/kernel/drivers/virtio/virtio_mem.ko", "virtio_mem.ko"),
        ("./lib/modules/6.1/kernel/drivers/virtio/virtio.ko.xz", "virtio.ko.xz"),
        ("./lib/modules/6.1/kernel/drivers/net/virtio_net.ko", "virtio_net.ko"),
        ("./lib/modules/6.1/kernel/net/core/failover.ko.xz", "failover.ko.xz"),
        ("./lib/modules/6.20/kernel/fs/ext4/ext4.ko.zst", "ext4.ko.zst"),
        ("./lib/modules/6.20/kernel/fs/ext4/ext4.ko.gz", "ext4.ko.gz"),
        ("./lib/modules/6.18/kernel/crypto/crc32c-cryptoapi.ko.xz", "crc32c-cryptoapi.ko.xz"),
        ("./lib/modules/6.1/kernel/drivers/net/veth.ko", None),
        ("./lib/modules/6.1/kernel/vmlinuz", None),
        ("./boot/System.map-6.1", None),
        ("./boot/../vmlinuz", None),
        ("./usr/share/doc/busybox", None),
    ],
)
def test_what_is_kept_of_a_package(member: str, name: str | None) -> None:
    assert kept_name(member) == name


DNF = r"""
echo "dnf $*" >>"$FAKE/log"
for word; do case "$word" in --destdir=*) to="${word#*=}" ;; esac; done
case "${@: -1}" in
kernel-core) touch "$to/kernel-core-6.12.5-200.fc42.x86_64.rpm" "$to/kernel-core-uki-6.12.5-200.fc42.x86_64.rpm" ;;
busybox) ;;
*) echo "Error: No package ${@: -1} available." >&2; exit 1 ;;
esac
"""


BSDTAR = r"""
folder="${@: -1}/lib/modules/6.12.5-200.fc42"
mkdir -p "$folder"; cp "$FAKE/kernel" "$folder/vmlinuz"; echo CONFIG_X=y >"$folder/config"
"""


@pytest.fixture
def fedora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install, bzimage: Kernel) -> Path:
    """Return the log of a machine where dnf is, and no apt."""
    programs = tmp_path / "bin"
    install(programs, "dnf", DNF)
    install(programs, "bsdtar", BSDTAR)
    for name in ("bash", "mkdir", "cp", "touch"):
        path = shutil.which(name)
        assert path
        (programs / name).symlink_to(path)
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "kernel").write_bytes(bzimage("6.12.5-200.fc42"))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("FAKE", str(tmp_path / "fake"))
    return tmp_path / "fake" / "log"


def test_dnf(fedora: Path, tmp_path: Path) -> None:
    found = distribution_kernel("x86_64", tmp_path / "cache", suite="42", report=lambda _: None)
    assert found.release == "6.12.5-200.fc42"
    assert found.config is not None
    (command,) = fedora.read_text().splitlines()
    assert "--forcearch=x86_64" in command and "--releasever=42" in command
    assert f"--setopt=cachedir={tmp_path / 'cache'}" in command
    assert command.endswith(" kernel-core")


@pytest.mark.usefixtures("fedora")
def test_dnf_failure_is_told_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No package kernel-rt available"):
        distribution_kernel("x86_64", tmp_path / "cache", package="kernel-rt", report=lambda _: None)
    with pytest.raises(InputError, match="package busybox for x86_64: dnf downloaded nothing"):
        static_busybox("x86_64", tmp_path / "cache", report=lambda _: None)


def test_rpm_without_bsdtar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="install bsdtar"):
        rpm_commands(tmp_path / "x.rpm", tmp_path)
    install(tmp_path, "rpm2cpio", "")
    install(tmp_path, "cpio", "")
    assert [command[0] for command in rpm_commands(tmp_path / "x.rpm", tmp_path)] == ["rpm2cpio", "cpio"]


def test_package_with_a_kernel_of_another_architecture(
    distribution: Distribution, tmp_path: Path, bzimage: Kernel
) -> None:
    distribution.add("odd", "1", "", {"./boot/vmlinuz-1.2": bzimage("1.2")})
    with pytest.raises(InputError, match=r"vmlinuz-1\.2 is a kernel for x86_64: expected one for aarch64"):
        distribution_kernel("aarch64", tmp_path / "cache", package="odd", report=lambda _: None)


def test_neither_apt_nor_dnf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="neither apt-get nor dnf"):
        distribution_kernel("x86_64", tmp_path / "cache", report=lambda _: None)
