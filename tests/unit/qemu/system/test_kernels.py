"""What ``kernel`` of a system machine means."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.debian_root import ChosenKernel, choose_kernel, digest_tree

RELEASE = "6.18.0-test"


@pytest.fixture
def image(tmp_path: Path, bzimage: Callable[[str], bytes]) -> Path:
    path = tmp_path / "prefix" / "boot" / f"vmlinuz-{RELEASE}"
    path.parent.mkdir(parents=True)
    path.write_bytes(bzimage(RELEASE))
    return path


def with_modules(directory: Path) -> Path:
    (directory / "kernel").mkdir(parents=True)
    return directory


def test_nothing_is_the_distributions_kernel() -> None:
    assert choose_kernel(None, "x86_64") == ChosenKernel()


def test_bare_image_has_no_modules(image: Path) -> None:
    kernel = choose_kernel(image, "x86_64")
    assert kernel.image is not None
    assert (kernel.image.release, kernel.modules, kernel.package) == (RELEASE, None, None)


@pytest.mark.parametrize(
    "place",
    [f"prefix/lib/modules/{RELEASE}", f"prefix/usr/lib/modules/{RELEASE}", f"prefix/boot/lib/modules/{RELEASE}"],
)
def test_modules_beside_the_image(image: Path, tmp_path: Path, place: str) -> None:
    modules = with_modules(tmp_path / place)
    assert choose_kernel(image, "x86_64").modules == modules


def test_image_within_its_modules(tmp_path: Path, bzimage: Callable[[str], bytes]) -> None:
    modules = with_modules(tmp_path / "lib" / "modules" / RELEASE)
    (modules / "vmlinuz").write_bytes(bzimage(RELEASE))
    assert choose_kernel(modules / "vmlinuz", "x86_64").modules == modules


def test_modules_of_another_version_do_not_count(image: Path, tmp_path: Path) -> None:
    with_modules(tmp_path / "prefix" / "lib" / "modules" / "6.17.0")
    assert choose_kernel(image, "x86_64").modules is None


def test_links_into_a_build_tree_are_no_modules(image: Path, tmp_path: Path) -> None:
    modules = tmp_path / "prefix" / "lib" / "modules" / RELEASE
    modules.mkdir(parents=True)
    (modules / "build").symlink_to("/usr/src/linux")
    assert choose_kernel(image, "x86_64").modules is None


def test_release_that_cannot_name_a_directory(tmp_path: Path, bzimage: Callable[[str], bytes]) -> None:
    modules = with_modules(tmp_path / "6.1.0;$(id)")
    (modules / "vmlinuz").write_bytes(bzimage("6.1.0;$(id)"))
    with pytest.raises(InputError, match="cannot name a directory"):
        choose_kernel(modules / "vmlinuz", "x86_64")


def test_package_is_installed(tmp_path: Path) -> None:
    package = tmp_path / "linux-image.deb"
    package.write_bytes(b"!<arch>\n")
    assert choose_kernel(package, "x86_64") == ChosenKernel(package=package)


@pytest.mark.parametrize("name", ["absent.deb", "kernel.rpm", "absent"])
def test_what_is_no_kernel_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=name):
        choose_kernel(tmp_path / name, "x86_64")


def test_kernel_of_another_architecture(image: Path) -> None:
    with pytest.raises(InputError, match="is a kernel for x86_64: expected one for aarch64"):
        choose_kernel(image, "aarch64")


def test_digest_changes_with_names_and_contents(tmp_path: Path) -> None:
    seen = set()
    for name, content in (("a", "1"), ("a", "2"), ("b", "2")):
        directory = tmp_path / f"{name}{content}"
        directory.mkdir()
        (directory / name).write_text(content)
        seen.add(digest_tree(directory))
    assert len(seen) == 3


def test_digest_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    before = digest_tree(tmp_path)
    (tmp_path / "build").symlink_to("/etc")
    assert digest_tree(tmp_path) == before
