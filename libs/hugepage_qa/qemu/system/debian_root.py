"""The root of a Debian system from packages, by mmdebstrap, and what ``kernel`` of a system machine means."""

import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.child import run_to_end
from hugepage_qa.qemu.apt import APT_DIRECTORY, format_sources, read_sources, select_sources
from hugepage_qa.qemu.kernel_image import KernelImage, identify
from hugepage_qa.qemu.system.build_tools import (
    MMDEBSTRAP,
    mmdebstrap_mode,
    own_mounts,
    program,
    run_as_superuser,
    superuser_directory,
)
from hugepage_qa.qemu.system.platforms import Platform

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


_OS_RELEASE = Path("/etc/os-release")
_INSTALLED = re.compile(r"^Inst (?P<name>\S+) \((?P<version>\S+)", re.MULTILINE)

#: what the machine itself, tmt and the suite's own tests need; the kernel's packages beside it make it bootable
_PACKAGES = (
    *("systemd-sysv", "udev", "dbus", "libpam-systemd", "kmod", "initramfs-tools", "linux-base"),
    *("openssh-server", "rsync", "ca-certificates", "iproute2", "procps", "dosfstools"),
    *("python3", "python3-venv", "gcc", "libc6-dev", "numactl"),
    # tmt asks it which packages hold the files that it requires
    "apt-file",
)

_NOT_UNPACKED = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*")

# mmdebstrap hands hooks to a shell: no text of the user may stand in them
_KERNEL_PACKAGE = "kernel.deb"
_PACKAGE_HOOKS = (
    f"upload {_KERNEL_PACKAGE} /var/tmp/{_KERNEL_PACKAGE}",
    f'chroot "$1" apt-get install --yes /var/tmp/{_KERNEL_PACKAGE}',
    f'rm "$1/var/tmp/{_KERNEL_PACKAGE}"',
)
# with the indices, those of apt-file too, the machine can install packages without first fetching them under TCG;
# it gets the same sources again from the overlay
_INDEX_HOOKS = (
    'chroot "$1" apt-get update',
    'rm -f "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*',
)
_MODULES_ARCHIVE = "modules.tar"
_RELEASE_VARIABLE = "LAB_KERNEL_RELEASE"
_MODULES_HOOKS = (
    f"tar-in {_MODULES_ARCHIVE} /",
    # packages leave the list of dependencies to their installation
    f'chroot "$1" depmod "${_RELEASE_VARIABLE}"',
    f'chroot "$1" update-initramfs -c -k "${_RELEASE_VARIABLE}"',
)


@dataclass(frozen=True)
class DebianRoot:
    """Everything that decides which packages lie in the root."""

    platform: Platform
    suite: str
    sources: str
    """Package sources in deb822 format."""
    kernel: ChosenKernel
    """A package file of it is installed instead of the distribution's kernel, modules of it besides."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages that are asked for by name."""
        kernel = () if self.kernel.package else (self.platform.board.debian_kernel,)
        return (*_PACKAGES, self.platform.grub_package, *kernel)

    def ingredients(self) -> Mapping[str, object]:
        """Return what decides about the root, apart from the versions that the packages have today."""
        package = digest_file(self.kernel.package) if self.kernel.package else None
        modules = [digest_tree(self.kernel.modules), _configuration(self.kernel)] if self.kernel.modules else None
        return {
            "architecture": self.platform.board.architecture,
            "suite": self.suite,
            "sources": self.sources,
            "packages": self.packages,
            "left out": _NOT_UNPACKED,
            "kernel package": package,
            "modules": modules,
        }

    def resolve(self) -> Mapping[str, str]:
        """Return the version of every package that the root would have today; InputError when apt cannot tell."""
        with tempfile.TemporaryDirectory(prefix="hugepage-qa-") as name:
            work = Path(name)
            with superuser_directory(work) as place:
                output = self._run(work, ["--verbose", "--simulate"], place / "root")
        found = {match["name"]: match["version"] for match in _INSTALLED.finditer(output)}
        if not found:
            raise InputError("mmdebstrap --simulate named no package: expected Debian's version 1.3 or newer")
        return found

    def unpack(self, work: Path, root: Path) -> None:
        """Make ``root`` with all packages installed; ``work`` is a private directory for what passes through."""
        hooks: list[str] = []
        if self.kernel.package:
            shutil.copyfile(self.kernel.package, work / _KERNEL_PACKAGE)
            hooks += _PACKAGE_HOOKS
        if self.kernel.modules:
            _pack_modules(self.kernel.modules, _configuration(self.kernel), work / _MODULES_ARCHIVE)
            hooks += _MODULES_HOOKS
        hooks += _INDEX_HOOKS
        environment = {_RELEASE_VARIABLE: self.kernel.modules.name} if self.kernel.modules else {}
        self._run(work, [f"--customize-hook={hook}" for hook in hooks], root, environment)

    def _run(self, work: Path, options: Sequence[str], root: Path, environment: Mapping[str, str] | None = None) -> str:
        # mmdebstrap itself could only make it as this user
        run_as_superuser(["mkdir", "--", str(root)])
        sources = work / "lab.sources"
        sources.write_text(self.sources, encoding="utf-8")
        command = [
            *(*own_mounts(), program(MMDEBSTRAP), f"--mode={mmdebstrap_mode()}"),
            *("--variant=minbase", "--format=directory"),
            f"--architectures={self.platform.board.debian_architecture}",
            f"--include={','.join(self.packages)}",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in _NOT_UNPACKED),
            '--aptopt=Acquire::Languages "none"',
            "--skip=cleanup/apt/lists",
            *options,
            *(self.suite, str(root), str(sources)),
        ]
        variables = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(environment or {})}
        done = run_to_end(command, directory=work, environment=variables)
        if done.returncode != 0:
            complaints = [line for line in done.stderr.splitlines() if re.match(r"E: |dpkg: error", line)]
            reason = " | ".join(complaints[:3]) or f"exit code {done.returncode}"
            raise InputError(f"mmdebstrap cannot build a {self.suite} root: {reason}")
        return done.stdout + done.stderr


def _configuration(kernel: ChosenKernel) -> str:
    """Return the kernel's configuration, in which mkinitramfs looks for the compression that the kernel can undo.

    Without one it gets the answer that holds for every kernel with an initramfs, unless somebody changed the default.
    """
    known = kernel.image.config if kernel.image else None
    return "".join(f"{name}={value}\n" for name, value in sorted((known or {"CONFIG_RD_GZIP": "y"}).items()))


def _pack_modules(modules: Path, configuration: str, archive: Path) -> None:
    """Put ``modules`` into ``archive`` as the root of a system has them; links into a build tree stay behind."""

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        return entry if entry.isfile() or entry.isdir() else None

    with tarfile.open(archive, "w") as tar:
        tar.add(modules, f"usr/lib/modules/{modules.name}", filter=kept)
        content = configuration.encode()
        entry = tarfile.TarInfo(f"boot/config-{modules.name}")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))


def debian_root(platform: Platform, kernel: ChosenKernel) -> DebianRoot:
    """Return the root of this host's own release; InputError when the host is no Debian with package sources."""
    fields = dict(line.partition("=")[::2] for line in _OS_RELEASE.read_text(encoding="utf-8").splitlines())
    distribution, suite = fields.get("ID", "").strip('"'), fields.get("VERSION_CODENAME", "").strip('"')
    if distribution != "debian" or not suite:
        raise InputError(
            f"this host is {distribution or 'unknown'} {suite}: a system machine is built from the packages of Debian,"
            " run on a Debian release"
        )
    sources = format_sources(select_sources(read_sources(APT_DIRECTORY), None), targets=None)
    return DebianRoot(platform, suite, sources, kernel)
