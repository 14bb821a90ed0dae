"""Kernels and a static busybox from the distribution's packages: nothing is installed, no root is needed.

With apt, a private apt root per architecture serves: ``dpkg --add-architecture`` would change the machine. Where
there is dnf and no apt, ``dnf download --forcearch`` does the same.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hugepage_qa.cache import cache_directory, locked, write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.apt import AptRoot
from hugepage_qa.qemu.boards import Board, find_board
from hugepage_qa.qemu.kernel_image import KernelImage, identify
from hugepage_qa.qemu.package_archive import CHOICE, DnfRoot, unpack

__all__ = ["cache_directory", "distribution_kernel", "kernel_packages", "open_kernel", "static_busybox"]

_REMEMBERED_SECONDS = 24 * 3600
"""How long an answer of the package index is used without asking again."""

_PACKAGES = (".deb", ".rpm")

Report = Callable[[str], None]


def distribution_kernel(
    architecture: str, cache: Path, *, package: str | None = None, suite: str | None = None, report: Report
) -> KernelImage:
    """Return the newest kernel of ``package`` (default: the board's) that the distribution offers.

    ``suite`` (``sid``, ``trixie``; a release version with dnf) replaces the suites that the machine uses. ``report``
    takes lines about downloads and missing indices. Without network the answer of last time serves; InputError when
    there is none.
    """
    board = find_board(architecture)
    wanted = package or (_apt_here() and board.debian_kernel) or "kernel-core"
    directory = _obtain(board, cache, wanted, suite, report, kernel=True)
    return _kernel_in(directory, f"package {wanted} for {architecture}", architecture)


def kernel_packages(architecture: str, cache: Path, suite: str, *, report: Report) -> list[str]:
    """Return the packages of all kernels of the board's flavour that ``suite`` holds, in no order.

    Nothing but indices is downloaded. Raises InputError where there is none, or no apt.
    """
    board = find_board(architecture)
    if not _apt_here():
        raise InputError("apt-get is not installed, which tells what a suite holds: pass kernels of your own")
    place = f"{board.debian_architecture}-{suite}"
    with locked(cache / "packages" / f"{place}.lock"):
        root = AptRoot(cache / "packages" / "roots" / place, board.debian_architecture, suite, report)
        found = root.kernels(board.debian_kernel)
    if not found:
        raise InputError(f"suite {suite}: no kernel of the flavour of {board.debian_kernel}")
    return found


def open_kernel(path: Path, cache: Path, architecture: str | None = None) -> KernelImage:
    """Return the kernel in ``path``, an image or a package (.deb, .rpm), which is unpacked below ``cache``.

    Raises InputError where there is none, or none for ``architecture``.
    """
    if path.suffix not in _PACKAGES:
        return identify(path, architecture)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected the image or the package of a kernel")
    return _kernel_in(_unpack_once(cache / "packages" / "content", [path]), str(path), architecture)


def _kernel_in(directory: Path, package: str, architecture: str | None) -> KernelImage:
    """Return the kernel of ``package``, which was unpacked into ``directory``."""
    images = list(directory.glob("vmlinu*"))
    if len(images) != 1:
        raise InputError(f"{package}: expected a package with a kernel image, found {len(images)} images in it")
    return replace(identify(images[0], architecture), modules=tuple(sorted(directory.glob("*.ko*"))))


def static_busybox(architecture: str, cache: Path, *, report: Report) -> Path:
    """Return a statically linked busybox for ``architecture``; errors as in distribution_kernel."""
    wanted = "busybox-static" if _apt_here() else "busybox"
    try:
        busybox = _obtain(find_board(architecture), cache, wanted, None, report, kernel=False) / "busybox"
    except InputError as error:
        if _apt_here():
            raise
        raise InputError(f"{error}; RHEL and its relatives have busybox in EPEL: enable that") from error
    if not busybox.exists():
        raise InputError(f"package {wanted} for {architecture}: it holds no busybox")
    return busybox


def _apt_here() -> bool:
    return shutil.which("apt-get") is not None


def _obtain(board: Board, cache: Path, package: str, suite: str | None, report: Report, *, kernel: bool) -> Path:
    """Return the directory in the cache that holds the files of ``package``."""
    architecture = board.debian_architecture if _apt_here() else board.rpm_architecture
    place = f"{architecture}-{suite or 'default'}"
    contents = cache / "packages" / "content"
    # what an older version of this suite kept of the package is not what this one needs
    note = cache / "packages" / "names" / CHOICE.hex()[:16] / place / f"{package}.json"
    # also keeps two processes from using one apt root at once
    with locked(cache / "packages" / f"{place}.lock"):
        remembered = _recall(note, contents)
        if remembered and time.time() - note.stat().st_mtime < _REMEMBERED_SECONDS:
            return remembered[0]
        source = _source(board, cache / "packages" / "roots" / place, suite, report)
        try:
            fetched = source.fetch_kernel(package) if kernel else source.fetch(package)
        except InputError as error:
            if remembered is None:
                raise
            report(f"{error}; using {remembered[1]} {remembered[2]} from the cache")
            return remembered[0]
        content = _store(contents, fetched.files)
        write_atomically(note, json.dumps([content.name, fetched.name, fetched.version]).encode())
        return content


def _recall(note: Path, contents: Path) -> tuple[Path, str, str] | None:
    """Return files, name and version that ``note`` remembers; None when there is nothing, or the files are gone."""
    try:
        digest, name, version = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    return (contents / digest, name, version) if (contents / digest).is_dir() else None


def _store(contents: Path, files: Sequence[Path]) -> Path:
    """Return what ``_unpack_once`` does, and remove the packages."""
    final = _unpack_once(contents, files)
    for file in files:
        file.unlink()
    return final


def _unpack_once(contents: Path, files: Sequence[Path]) -> Path:
    """Return the directory below ``contents`` that holds the kernel, configuration or busybox of package ``files``.

    It is named after the content of the packages and what is kept of it, and appears whole or not at all.
    """
    digests = [CHOICE, *(hashlib.sha256(file.read_bytes()).digest() for file in files)]
    digest = hashlib.sha256(b"".join(digests)).hexdigest()
    final = contents / digest
    if not final.exists():
        contents.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=contents, prefix=".new-") as name:
            unpacked = Path(name) / "unpacked"
            unpacked.mkdir()
            for file in files:
                unpack(file, unpacked)
            # a second process may have been faster, under another suite and so another lock
            if not final.exists():
                unpacked.rename(final)
    return final


def _source(board: Board, root: Path, suite: str | None, report: Report) -> AptRoot | DnfRoot:
    if _apt_here():
        return AptRoot(root, board.debian_architecture, suite, report)
    if shutil.which("dnf"):
        return DnfRoot(root, board.rpm_architecture, suite, report)
    raise InputError("neither apt-get nor dnf is installed: pass a kernel image of your own")
