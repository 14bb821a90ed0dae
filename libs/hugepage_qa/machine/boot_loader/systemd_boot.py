"""systemd-boot: /etc/kernel/cmdline, from which kernel-install generates the entry or the unified kernel image."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import (
    BootLoader,
    append_words,
    drop_words,
    keep_files,
    parse_words,
    read_optional_text,
    replace_text,
    run_tool,
)

_COMMAND_LINE = "etc/kernel/cmdline"
_FIELD = re.compile(r"\s*(?P<name>[\w-]+): (?P<value>.*)")
# later versions say which partition a file is on
_SOURCE = re.compile(r"(?P<path>/.*?)(?: \(on the .*\))?")
_IMAGES = ("usr/lib/modules/{version}/vmlinuz", "lib/modules/{version}/vmlinuz", "boot/vmlinuz-{version}")


@dataclass(frozen=True)
class _Entry:
    path: Path
    version: str
    options: str


class SystemdBoot(BootLoader):
    """The entry that systemd-boot boots next, as bootctl finds it in the entries and EFI variables."""

    name = "kernel-install"

    def __init__(self, root: Path, bootctl: str, kernel_install: str) -> None:
        self._root = root
        self._bootctl = bootctl
        self._kernel_install = kernel_install
        self._command_line = root / _COMMAND_LINE

    @property
    def configuration(self) -> tuple[Path, ...]:
        return (self._command_line,)

    def arguments(self) -> tuple[str, ...]:
        return parse_words(self._entry().options)

    def _append(self, arguments: Sequence[str]) -> None:
        self._generate(append_words(self._read(), arguments))

    def _drop(self, arguments: Sequence[str]) -> None:
        self._generate(drop_words(self._read(), arguments))

    def _save(self) -> Callable[[], None]:
        entry = self._entry()
        is_image = entry.path.suffix == ".efi"
        put_back = keep_files([self._command_line] if is_image else [self._command_line, entry.path])

        def undo() -> None:
            put_back()
            if is_image:
                self._install(entry.version)

        return undo

    def _read(self) -> str:
        """Return the text of /etc/kernel/cmdline; where there is none, the entry's, else that of /proc/cmdline counts.

        (90-loaderentry.install of systemd.)
        """
        text = read_optional_text(self._command_line)
        return self._entry().options if text is None else " ".join(text.split("\n"))

    def _generate(self, text: str) -> None:
        version = self._entry().version
        replace_text(self._command_line, text + "\n")
        self._install(version)

    def _install(self, version: str) -> None:
        images = [self._root / image.format(version=version) for image in _IMAGES]
        image = next((path for path in images if path.is_file()), None)
        if image is None:
            places = " or ".join(map(str, images))
            raise InputError(f"kernel {version} of the entry that boots next: expected its image at {places}")
        run_tool([self._kernel_install, "add", version, str(image)])

    def _entry(self) -> _Entry:
        # its JSON does not tell the default before version 253
        for stanza in run_tool([self._bootctl, "list", "--no-pager"]).split("\n\n"):
            matches = (_FIELD.fullmatch(line) for line in stanza.splitlines())
            fields = {match["name"]: match["value"] for match in matches if match}
            source = _SOURCE.fullmatch(fields.get("source", ""))
            if "(default)" in fields.get("title", "") and source:
                return _Entry(Path(source["path"]), fields.get("version", ""), fields.get("options", ""))
        raise InputError("bootctl list: names no default entry of a file, expected one with (default) in its title")
