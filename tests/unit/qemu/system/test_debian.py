"""The root of a Debian system: what decides about it, and how mmdebstrap is asked for it."""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.qemu.system.conftest import FakeMmdebstrap

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.system import debian_root as module
from hugepage_qa.qemu.system.debian_root import ChosenKernel, DebianRoot, debian_root
from hugepage_qa.qemu.system.platforms import Platform

SOURCES = "types: deb\nuris: http://deb.example/debian\nsuites: bookworm\ncomponents: main\n"


@pytest.fixture
def packages(platform: Platform) -> DebianRoot:
    return DebianRoot(platform, "bookworm", SOURCES, ChosenKernel())


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    directory = tmp_path / "modules" / "6.18.0-test"
    (directory / "kernel").mkdir(parents=True)
    (directory / "kernel" / "a.ko").write_text("module")
    (directory / "modules.dep").write_text("")
    (directory / "build").symlink_to("/usr/src/linux")
    return directory


def option(fake: FakeMmdebstrap, name: str) -> list[str]:
    return [word.removeprefix(f"{name}=") for word in fake.arguments() if word.startswith(f"{name}=")]


def test_versions_of_today(packages: DebianRoot, mmdebstrap: FakeMmdebstrap) -> None:
    assert packages.resolve() == {"libc6": "2.36-9", "linux-image-6.1": "6.1-2"}
    assert mmdebstrap.builds() == 0


def test_kernel_and_boot_loader_are_asked_for(packages: DebianRoot, mmdebstrap: FakeMmdebstrap, tmp_path: Path) -> None:
    packages.unpack(tmp_path, tmp_path / "root")
    names = option(mmdebstrap, "--include")[0].split(",")
    assert {"linux-image-cloud-amd64", "grub-efi-amd64", "openssh-server", "rsync", "python3"} <= set(names)
    assert option(mmdebstrap, "--architectures") == ["amd64"]
    assert mmdebstrap.arguments()[-3:-1] == ["bookworm", str(tmp_path / "root")]
    assert (tmp_path / "lab.sources").read_text() == SOURCES


def test_package_replaces_the_distributions_kernel(
    packages: DebianRoot, mmdebstrap: FakeMmdebstrap, tmp_path: Path
) -> None:
    package = tmp_path / "linux $(touch x).deb"
    package.write_bytes(b"kernel package")
    replace(packages, kernel=ChosenKernel(package=package)).unpack(tmp_path, tmp_path / "root")
    assert "linux-image-cloud-amd64" not in option(mmdebstrap, "--include")[0]
    assert (tmp_path / "kernel.deb").read_bytes() == b"kernel package"
    # hooks go through a shell
    assert not [hook for hook in option(mmdebstrap, "--customize-hook") if "touch" in hook]
    assert 'chroot "$1" apt-get install --yes /var/tmp/kernel.deb' in option(mmdebstrap, "--customize-hook")


def test_modules_go_into_the_root(
    packages: DebianRoot, mmdebstrap: FakeMmdebstrap, tmp_path: Path, modules: Path
) -> None:
    image = KernelImage(tmp_path / "vmlinuz", "x86_64", modules.name, {"CONFIG_RD_ZSTD": "y", "CONFIG_RD_GZIP": "y"})
    replace(packages, kernel=ChosenKernel(image=image, modules=modules)).unpack(tmp_path, tmp_path / "root")
    with tarfile.open(tmp_path / "modules.tar") as archive:
        names = archive.getnames()
        config = archive.extractfile("boot/config-6.18.0-test")
        assert config is not None
        assert config.read() == b"CONFIG_RD_GZIP=y\nCONFIG_RD_ZSTD=y\n"
    assert "usr/lib/modules/6.18.0-test/kernel/a.ko" in names
    assert "usr/lib/modules/6.18.0-test/build" not in names
    hooks = option(mmdebstrap, "--customize-hook")
    assert 'chroot "$1" update-initramfs -c -k "$LAB_KERNEL_RELEASE"' in hooks
    assert "linux-image-cloud-amd64" in option(mmdebstrap, "--include")[0]


def test_everything_that_goes_in_is_an_ingredient(packages: DebianRoot, tmp_path: Path, modules: Path) -> None:
    first, second = tmp_path / "a.deb", tmp_path / "b.deb"
    first.write_text("1")
    second.write_text("2")
    roots = [
        packages,
        replace(packages, suite="trixie"),
        replace(packages, sources="other"),
        replace(packages, kernel=ChosenKernel(package=first)),
        replace(packages, kernel=ChosenKernel(package=second)),
        replace(packages, kernel=ChosenKernel(modules=modules)),
    ]
    different = [str(root.ingredients()) for root in roots]
    assert len(set(different)) == len(roots)
    # the name of a file does not count, its content does
    second.write_text("1")
    assert replace(packages, kernel=ChosenKernel(package=second)).ingredients() == roots[3].ingredients()


def test_failure_is_one_line(packages: DebianRoot, mmdebstrap: FakeMmdebstrap, tmp_path: Path) -> None:
    mmdebstrap.offers(failure="apt-get update failed")
    with pytest.raises(InputError) as caught:
        packages.unpack(tmp_path, tmp_path / "root")
    assert str(caught.value) == "mmdebstrap cannot build a bookworm root: E: apt-get update failed"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("ID=fedora\nVERSION_ID=42\n", "this host is fedora"),
        ("ID=debian\n", "this host is debian"),
        ("", "this host is unknown"),
    ],
)
def test_host_that_is_no_debian_release(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    (tmp_path / "os-release").write_text(text)
    monkeypatch.setattr(module, "_OS_RELEASE", tmp_path / "os-release")
    with pytest.raises(InputError, match=complaint):
        debian_root(platform, ChosenKernel())


def test_machine_gets_all_indices_of_the_hosts_own_sources(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    (tmp_path / "sources.list").write_text("deb http://deb.example/debian bookworm main\n")
    monkeypatch.setattr(module, "_OS_RELEASE", tmp_path / "os-release")
    monkeypatch.setattr(module, "APT_DIRECTORY", tmp_path)
    root = debian_root(platform, ChosenKernel())
    assert (root.suite, root.kernel) == ("bookworm", ChosenKernel())
    assert "uris: http://deb.example/debian" in root.sources
    assert "targets" not in root.sources
