"""What cases write is a knob, which is saved before and put back whatever ends them, but for what is no setting."""

from itertools import product
from pathlib import Path

from tests.unit.cases.areas import read_areas
from tests.unit.cases.record_areas import read_records

from hugepage_qa.cases.result import Verdict
from hugepage_qa.machine.knobs import find_knobs

#: where settings are
_DIRECTORIES = "proc/sys/", "sys/kernel/mm/ksm/", "sys/kernel/mm/transparent_hugepage/", "sys/module/"
#: commands, and second names of what the pools' own files have
_NO_SETTINGS = {
    f"proc/sys/vm/{name}"
    for name in ("compact_memory", "drop_caches", "stat_refresh", "nr_hugepages", "nr_overcommit_hugepages")
}


def written() -> set[str]:
    """Return the settings that any recorded case has written."""
    found = set[str]()
    for area, verdict in product(read_areas(), (Verdict.PASS, Verdict.KNOWN)):
        for events in read_records(area, verdict).values():
            found |= {event["arguments"][0] for event in events if event["operation"] == "write"}
    return {path for path in found if path.startswith(_DIRECTORIES)} - _NO_SETTINGS


def test_every_setting_that_a_case_writes_is_saved(tmp_path: Path) -> None:
    settings = written()
    assert "proc/sys/vm/min_free_kbytes" in settings
    for path in settings:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("none\n", encoding="ascii")
    assert settings - {knob.path for knob in find_knobs(tmp_path)} == set()
