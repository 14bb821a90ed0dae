"""zipl, the boot loader of s390x: it writes what it boots into a bootmap, so each change is followed by a run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.files import keep_files, read_text, replace_text
from hugepage_qa.machine.boot_loader.grubby import kernel_for_grubby
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost, BootLoader
from hugepage_qa.machine.boot_loader.tool import run_tool
from hugepage_qa.machine.boot_loader.words import append_words, drop_words, join_words, parse_words
from hugepage_qa.machine.boot_loader.zipl_configuration import ZiplEntry, default_zipl_entry, with_parameters

# the smallest block of a disk, bytes
_BLOCK = 512


class Zipl(BootLoader):
    """The default entry of zipl: a section of zipl.conf, or an entry of the Boot Loader Specification."""

    def __init__(self, root: Path, program: str, grubby: str | None) -> None:
        """Use the zipl at ``program``; where ``grubby`` is installed, it makes the changes to entries."""
        self._root = root
        self._program = program
        self._grubby = grubby if default_zipl_entry(root).is_bls else None
        self.name = "grubby and zipl" if self._grubby else "zipl"

    @property
    def configuration(self) -> tuple[Path, ...]:
        entry = default_zipl_entry(self._root)
        return () if entry.is_bls else (_edited(entry),)

    def arguments(self) -> tuple[str, ...]:
        entry = default_zipl_entry(self._root)
        # the configuration is only what the next run of zipl would write
        if not self._is_written(entry):
            raise InputError(f"{self._bootmap(entry)}: does not hold the parameters in {entry.path}: run zipl first")
        return parse_words(_parameter_line(entry))

    def _append(self, arguments: Sequence[str]) -> None:
        before = self.arguments()
        if self._grubby:
            self._run_grubby("--args", arguments)
        else:
            self._edit(lambda text: append_words(text, arguments))
        self._run_zipl("lost", arguments, before)

    def _drop(self, arguments: Sequence[str]) -> None:
        before = self.arguments()
        if self._grubby:
            self._run_grubby("--remove-args", arguments)
        else:
            self._edit(lambda text: drop_words(text, arguments))
        self._run_zipl("left", arguments, before)

    def _save(self) -> Callable[[], None]:
        put_back = keep_files([_edited(default_zipl_entry(self._root))])

        def undo() -> None:
            put_back()
            # the bootmap is a list of disk blocks: a copy of it would not boot
            run_tool([self._program])

        return undo

    def _run_zipl(self, failure: str, arguments: Sequence[str], before: Sequence[str]) -> None:
        run_tool([self._program])
        if not self._is_written(default_zipl_entry(self._root)):
            raise ArgumentsLost("zipl", failure, arguments, before)

    def _is_written(self, entry: ZiplEntry) -> bool:
        """Tell whether the bootmap has the arguments: they begin a block, and a null byte ends them."""
        # add_component_buffer() in zipl/src/bootmap.c
        line = _parameter_line(entry).encode("utf-8", "surrogateescape") + b"\0"
        content = _read_bytes(self._bootmap(entry))
        return any(content.startswith(line, start) for start in range(0, len(content), _BLOCK))

    def _bootmap(self, entry: ZiplEntry) -> Path:
        return self._root / entry.target.lstrip("/") / "bootmap"

    def _run_grubby(self, option: str, arguments: Sequence[str]) -> None:
        kernel = kernel_for_grubby(default_zipl_entry(self._root).kernel)
        run_tool([self._grubby or "grubby", f"--update-kernel={kernel}", f"{option}={join_words(arguments)}"])

    def _edit(self, change: Callable[[str], str]) -> None:
        entry = default_zipl_entry(self._root)
        path = _edited(entry)
        text = read_text(path)
        if path == entry.parmfile:
            replace_text(path, change(" ".join(text.splitlines())) + "\n")
        elif entry.is_bls:
            replace_text(path, _with_options(text, change(entry.parameters or "")))
        else:
            replace_text(path, with_parameters(text, entry.section, change(entry.parameters or "")))


def _edited(entry: ZiplEntry) -> Path:
    """Return the file that the last of the kernel arguments stand in."""
    return entry.parmfile if entry.parmfile and entry.parameters is None else entry.path


def _parameter_line(entry: ZiplEntry) -> str:
    """Return the kernel arguments as zipl puts them together (get_parmline() in zipl/src/job.c)."""
    parts = [" ".join(read_text(entry.parmfile).splitlines())] if entry.parmfile else []
    return " ".join([*parts, *([entry.parameters] if entry.parameters else [])])


def _with_options(text: str, options: str) -> str:
    lines = text.splitlines()
    position = next((index for index, line in enumerate(lines) if line.split()[:1] == ["options"]), len(lines))
    return "\n".join([*lines[:position], f"options {options}", *lines[position + 1 :]]) + "\n"


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): run zipl first, as root") from error
