"""Results as they come: a line of JSON for each finished case, from the tests to whoever shows them."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from hugepage_qa.cases.result import Result, Verdict

_POLL_SECONDS = 0.1


def append_result(file: Path, result: Result) -> None:
    """Append ``result`` to ``file``, without its evidence and logs."""
    line = json.dumps([result.name, result.verdict.value, list(result.reasons), result.seconds])
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@contextmanager
def shown_as_they_come(file: Path, show: Callable[[Result], None]) -> Iterator[None]:
    """Make ``file``, and call ``show`` in a thread for each result that is appended to it until the block has ended."""
    file.touch()
    ended = Event()
    thread = Thread(target=_follow, args=(file, show, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _follow(file: Path, show: Callable[[Result], None], ended: Event) -> None:
    with file.open(encoding="utf-8") as lines:
        begun = ""
        is_last = False
        while not is_last:
            # what was appended before the end is still read after it
            is_last = ended.wait(_POLL_SECONDS)
            for piece in lines:
                begun += piece
                if begun.endswith("\n"):
                    show(_parse(begun))
                    begun = ""


def _parse(line: str) -> Result:
    name, verdict, reasons, seconds = json.loads(line)
    return Result(name, Verdict(verdict), tuple(reasons), seconds)
