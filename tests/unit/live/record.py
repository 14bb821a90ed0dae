"""Record the live cases on this machine, for the tests that replay and falsify them: python -m tests.unit.live.record

Root is needed, and a machine that nobody else uses. A record holds what one case did and saw on one page size.
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hugepage_qa.live.case import Area
from hugepage_qa.live.host import Host
from hugepage_qa.live.judge import judge
from hugepage_qa.live.pool_view import read_pool_view
from hugepage_qa.live.real_machine import real_machine
from hugepage_qa.live.transcript import Recorder
from hugepage_qa.sizes import format_size
from hugepage_qa.verdict import Verdict
from tests.unit.live.areas import read_areas

RECORDS = Path(__file__).resolve().parents[1] / "captures" / "live"


def main() -> None:
    """Record the areas that the command line names, all without names."""
    for area in read_areas():
        if len(sys.argv) > 1 and area.name not in sys.argv[1:]:
            continue
        records = dict(_record(area))
        text = json.dumps(records, sort_keys=True)
        # no time in it: the same records are the same file
        (RECORDS / f"{area.name.replace('/', '-')}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{area.name}: {len(records)} records")  # noqa: T201


def _record(area: Area) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for case in area.cases:
        with tempfile.TemporaryDirectory() as scratch, real_machine(Path(scratch)) as machine:
            size = min(read_pool_view(Host(machine)).pools)
            recorder = Recorder(machine)
            judgement = judge(area, case, Host(recorder), size)
        if judgement is None:
            continue
        if judgement.verdict is Verdict.PASS:
            yield f"{case.name}/{format_size(size)}", recorder.events
        else:
            print(f"{judgement.name}: {judgement.verdict.value}: {judgement.reason}")  # noqa: T201


if __name__ == "__main__":
    main()
