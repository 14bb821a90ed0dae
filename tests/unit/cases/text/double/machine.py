"""A double as the backend of a Host: it carries out what the cases of tests/text do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.unit.cases.kinds import X86_64
from tests.unit.cases.text.double.behaviour import Wrong
from tests.unit.cases.text.double.collapsing import faults_in, scan
from tests.unit.cases.text.double.files import DROP_CACHES, ENABLED, FULL_SCANS, PMD, THRESHOLD, Files
from tests.unit.cases.text.double.process_memory import Process, TextFile
from tests.unit.cases.text.double.requests import CHECKSUM, answer
from tests.unit.cases.text.double.started import map_file

from hugepage_qa.oracle.program_text import ElfFile, Kind, Segment

_DEBUGFS = "/double/debugfs"
_SPLIT = f"{_DEBUGFS.lstrip('/')}/split_huge_pages"

#: recipe -> what was built: sizes and segments, for a test that does not want a compiler
Build = Callable[[dict[str, Any]], dict[str, Any]]


class TextDouble:
    """A machine with hugetext that breaks the rules ``wrong``. Programs are built by ``build`` and never run."""

    kind = X86_64

    def __init__(self, build: Build, wrong: frozenset[Wrong] = frozenset(), *, is_switch: bool = False) -> None:
        self.wrong = wrong
        self.files = Files(wrong, is_switch=is_switch)
        self.processes: dict[int, Process] = {}
        self.cache: dict[str, TextFile] = {}
        self._programs: dict[str, str] = {}
        self._build = build
        self._log: list[str] = []
        self._seconds = 0.0
        self._operations: dict[str, Callable[..., Any]] = {
            "read": self._read,
            "observe": self._read,
            "names": lambda path: ["split_huge_pages"] if path == _DEBUGFS.lstrip("/") else self.files.names(path),
            "write": self._write,
            "kernel_option": lambda _name: True,
            "is_thrown_away": lambda: False,
            "mount": lambda _options, _kind: _DEBUGFS,
            "unmount": lambda _point: None,
            "start_actor": lambda: self._start(None),
            "build_text": self._build_text,
            "start_program": self._start,
            "request": lambda number, text: (answer(self, self.processes[number], text), None),
            "end": self._end,
            "exit": self._end,
            "skip_kernel_log": self._log.clear,
            "new_kernel_log": self._new_lines,
            "pause": self._let_khugepaged_scan,
            "clock": lambda: self._seconds,
        }

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        """Carry out one operation."""
        return self._operations[operation](*arguments)

    def is_mapped(self, file: TextFile) -> bool:
        """Tell whether a process maps ``file``."""
        return any(process.text and process.text.file is file for process in self.processes.values())

    def make_small(self, file: TextFile) -> None:
        """Split what the page cache has of ``file``, for every process."""
        file.huge = 0
        for process in self.processes.values():
            if process.text and process.text.file is file:
                process.text.huge = 0
                process.text.is_populated = True

    def _read(self, path: str) -> str | None:
        for process in self.processes.values():
            if path == f"proc/{process.pid}/smaps":
                return process.smaps(self.wrong)
            if path == f"proc/{process.pid}/smaps_rollup":
                return process.smaps_rollup(self.wrong)
        text = self.files.texts.get(path)
        return f"{text}{self._counted()}" if text and path == "proc/meminfo" else text

    def _counted(self) -> str:
        """Return the lines of meminfo on files in huge pages."""
        cached = sum(file.huge for file in self.cache.values())
        mapped = sum(file.huge for file in self.cache.values() if self._maps_huge(file))
        if Wrong.COUNTS_UNMAPPED in self.wrong:
            mapped = cached
        if Wrong.COUNTS_MAPPED_CACHE in self.wrong:
            cached = mapped
        mapped *= not self.wrong & {Wrong.NOT_COUNTED, Wrong.NOT_COUNTED_IN_MEMINFO}
        cached *= Wrong.CACHE_NOT_COUNTED not in self.wrong
        return f"FileHugePages: {cached // 1024} kB\nFilePmdMapped: {mapped // 1024} kB\n"

    def _maps_huge(self, file: TextFile) -> bool:
        return any(one.text and one.text.file is file and one.text.huge for one in self.processes.values())

    def _write(self, path: str, text: str) -> None:
        if path == _SPLIT:
            self._split()
            return
        self.files.write(path, text)
        if path == DROP_CACHES:
            self.drop(self.cache.values(), takes=Wrong.DROPS_MAPPED, leaves=Wrong.KEEPS_UNMAPPED)
        if path == ENABLED:
            self._mode_changed()
        if path == THRESHOLD and Wrong.PADS_RUNNING in self.wrong:
            for process in self.processes.values():
                if process.text:
                    process.text.end = self._mapped(process.text.file).end

    def drop(self, files: Any, *, takes: Wrong, leaves: Wrong) -> None:
        """Evict what nobody maps of ``files``, unless the double is wrong in one of these two ways."""
        for file in list(files):
            if self.is_mapped(file) if takes not in self.wrong else False:
                continue
            if leaves not in self.wrong:
                self.make_small(file)

    def _mode_changed(self) -> None:
        if self.files.mode == 0 and Wrong.SPLITS_WHEN_OFF in self.wrong:
            for file in self.cache.values():
                self.make_small(file)
        if self.files.mode & 1 and Wrong.MERGES_RUNNING in self.wrong:
            for process in self.processes.values():
                process.is_listed = process.is_listed or process.text is not None

    def _split(self) -> None:
        if Wrong.NOT_SPLIT not in self.wrong:
            for file in self.cache.values():
                if self.is_mapped(file) or Wrong.SPLITS_MAPPED_ONLY not in self.wrong:
                    self.files.count_event("thp_split_page", file.huge // PMD)
                    self.make_small(file)
        if Wrong.SPLITS_SILENTLY not in self.wrong:
            self._log.append("huge_memory: 3 of 3 THP split")

    def _build_text(self, recipe: dict[str, Any], _directory: str | None) -> dict[str, Any]:
        built = self._build(recipe)
        if path := self._programs.get(repr(recipe)):
            # as its pages are evicted when it is built, so they are when it is asked for again
            self.drop([self.cache[path]], takes=Wrong.EVICTS_MAPPED, leaves=Wrong.NOT_EVICTED)
            return built | {"program": path, "file": path, "pages": 1, "checksum": CHECKSUM}
        segments = tuple(Segment(**segment) for segment in built["segments"])
        elf = ElfFile(Kind(recipe["kind"]), segments, built["size"], built["runnable"])
        path = str(Path("/double", f"{len(self._programs)}", "text"))
        self.cache[path] = TextFile(path, elf)
        self._programs[repr(recipe)] = path
        return built | {"program": path, "file": path, "pages": 1, "checksum": CHECKSUM}

    def _mapped(self, file: TextFile) -> Any:
        return map_file(file, self.files.mode, self.files.threshold, self.wrong)

    def _start(self, path: str | None) -> tuple[int, int]:
        number = len(self.processes) and max(self.processes) + 1
        text = self._mapped(self.cache[path]) if path else None
        self.processes[number] = Process(1000 + number, text)
        return number, 1000 + number

    def _end(self, number: int) -> None:
        self.processes.pop(number, None)

    def _new_lines(self) -> list[str]:
        lines = list(self._log)
        self._log.clear()
        return lines

    def _let_khugepaged_scan(self, seconds: float) -> None:
        self._seconds += seconds
        if scan(self):
            self.files.texts[FULL_SCANS] = f"{int(self.files.texts[FULL_SCANS]) + 1}\n"

    def fault(self, process: Process) -> None:
        """Map the text of a process, as its first access does."""
        faults_in(self, process)
