"""What ``kernel`` of a system machine means: the distribution's, a package file, or an image file."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.image import KernelImage, identify

_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")


@dataclass(frozen=True)
class ChosenKernel:
    """The kernel of a machine. With neither part it is the distribution's, through the boot loader."""

    package: Path | None = None
    """A package file: installed into the image, booted through the boot loader."""
    image: KernelImage | None = None
    """An image file: booted directly."""
    modules: Path | None = None
    """The modules directory that belongs to ``image``; they go into the root, and its initramfs is made there."""


def choose_kernel(path: Path | None, architecture: str) -> ChosenKernel:
    """Return the kernel that ``path`` names; InputError when it is no kernel for ``architecture``.

    Modules are taken from beside an image, where ``make modules_install`` with the same prefix, a distribution and
    an unpacked package put them.
    """
    if path is None:
        return ChosenKernel()
    if path.suffix == ".rpm":
        raise InputError(f"{path}: an RPM package cannot be installed into a Debian root, expected a .deb or an image")
    if path.suffix == ".deb":
        if not path.is_file():
            raise InputError(f"{path}: no such file, expected a kernel package")
        return ChosenKernel(package=path)
    image = identify(path)
    if image.architecture != architecture:
        raise InputError(f"{path} is a kernel for {image.architecture}: expected one for {architecture}")
    modules = _modules_beside(image)
    if modules and not _RELEASE.fullmatch(image.release):
        raise InputError(f"{path}: its version {image.release!r} cannot name a directory of modules")
    return ChosenKernel(image=image, modules=modules)


def _modules_beside(image: KernelImage) -> Path | None:
    """Return the modules directory of ``image``: in PREFIX/boot/vmlinuz, PREFIX/vmlinuz or within it."""
    directory = image.path.absolute().parent
    prefixes = (directory, directory.parent)
    places = [prefix / part / "modules" / image.release for prefix in prefixes for part in ("lib", "usr/lib")]
    places += [directory] if directory.name == image.release else []
    # a build tree leaves a directory with nothing but links into it
    return next((place for place in places if (place / "kernel").is_dir()), None)


def digest_file(path: Path) -> str:
    """Return the SHA-256 of the content of file ``path``."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_tree(directory: Path) -> str:
    """Return a SHA-256 of names and contents of all regular files below ``directory``."""
    files = sorted(file for file in directory.rglob("*") if file.is_file() and not file.is_symlink())
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.relative_to(directory)}\0{digest_file(file)}\n".encode())
    return total.hexdigest()
