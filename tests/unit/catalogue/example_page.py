"""The case on the page "Add a case": taken from the page, run, and recorded.

    python -m tests.unit.catalogue.example_page

records on this machine what the page's case does (root, and a machine that nobody else uses).
"""

import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.unit.cases.transcript import Event, Recorder

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.backend import Backend
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.sizes import MIB

PAGE = Path(__file__).resolve().parents[3] / "docs" / "add-a-case.md"
RECORD = Path(__file__).resolve().parents[1] / "captures" / "documentation" / "add-a-case.json.gz"
SIZE = 2 * MIB


def blocks(language: str) -> list[str]:
    """Return the blocks of code on the page that are in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def area_of(code: str) -> Area:
    """Return the area that ``code``, a file of tests, defines."""
    names: dict[str, Any] = {"__name__": "mine"}
    exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - that the page runs is what is tested
    (area,) = (value for value in names.values() if isinstance(value, Area))
    return area


def run(code: str, machine: Backend) -> Result:
    """Run the one case that ``code`` defines."""
    area = area_of(code)
    (case,) = area.cases
    judgement = judge(area, case, Host(machine), SIZE)
    assert judgement is not None
    return judgement


def read_record() -> list[Event]:
    """Return what the machine did when the case was recorded."""
    events: list[Event] = json.loads(gzip.decompress(RECORD.read_bytes()))
    return events


def main() -> None:
    """Record."""
    with (
        protected_machine("a recording of the page's case"),
        tempfile.TemporaryDirectory(prefix="example-") as scratch,
        real_machine(Path(scratch)) as machine,
    ):
        recorder = Recorder(machine)
        judgement = run(blocks("python")[0], recorder)
    print(judgement)  # noqa: T201
    if judgement.verdict is Verdict.PASS:
        RECORD.write_bytes(gzip.compress(json.dumps(recorder.events, sort_keys=True).encode(), mtime=0))


if __name__ == "__main__":
    main()
