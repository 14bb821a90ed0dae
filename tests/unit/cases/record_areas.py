"""Record the live cases on this machine, or on a throwaway one, for the tests that replay and falsify them.

``python -m tests.unit.cases.record_areas AREA...``. Root is needed, and a machine that nobody else uses; with
``--throwaway`` neither. ``--suite`` names the release that such a machine has its kernel from, ``--package`` another
kernel of it than the newest, ``--kernel`` an image, ``--arch`` another architecture than x86_64 (what one has alone is
recorded there, and replayed as if it was x86_64), ``--case`` a case and can be repeated.
A record holds what one case did and saw on one page size. A case that this machine cannot run keeps the record that it
has from another one. What a kernel did wrong as a known bug says is recorded, too, apart from the right ones.
"""

import argparse
import gzip
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from tests.unit.cases.areas import read_areas
from tests.unit.cases.transcript import Event, Recorder

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.boot.boot_matrix import Settings, find_kernel
from hugepage_qa.cases.case import Area, Case, Sizes
from hugepage_qa.cases.guest.guest_machine import guest_machine
from hugepage_qa.cases.guest.guests import GuestArea
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.backend import Backend
from hugepage_qa.machine.host import Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.real_machine import real_machine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine
from hugepage_qa.qemu.agent_machine import start_agent_machine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB

_NEXT_MAPPING = re.compile(r"\n(?=[0-9a-f]+-[0-9a-f]+ )")
#: 32 MiB or more, huge pages of a pool, or transparent ones
_MAY_BE_OF_A_GUEST = re.compile(
    r"^Size: +(?:3[2-9]|[4-9]\d|\d{3,})\d{3} kB$|^VmFlags:.* ht\b|^(?:Anon|Shmem|File)\w+(?:Pages|Mapped): +[1-9]",
    re.MULTILINE,
)
RECORDS = Path(__file__).resolve().parents[1] / "captures" / "live"


def main() -> None:
    """Record the areas that the command line names, all without names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("areas", nargs="*")
    parser.add_argument("--throwaway", action="store_true")
    parser.add_argument("--suite")
    parser.add_argument("--arch", default="x86_64")
    parser.add_argument("--package")
    parser.add_argument("--kernel", type=Path)
    parser.add_argument("--case", action="append", default=[])
    wanted = parser.parse_args()
    areas = {area.name: area for area in read_areas()}
    for name in wanted.areas:
        if name not in areas:
            parser.error(f"no area {name!r}: expected one of {', '.join(sorted(areas))}")
    cases = {case.name for name in wanted.areas or areas for case in areas[name].cases}
    for name in wanted.case:
        if name not in cases:
            parser.error(f"no case {name!r}: expected one of {', '.join(sorted(cases))}")
    settings = Settings(wanted.kernel, wanted.package, wanted.suite)
    # killed, it leaves a journal, and the next run puts the machine back
    with nullcontext() if wanted.throwaway else protected_machine("a recording of live cases"):
        for name in wanted.areas or areas:
            area = areas[name]
            with _throwaway(settings, wanted.arch, area.words) if wanted.throwaway else _machine(area) as machine:
                found = list(_record_on(area, machine, wanted.case))
            for verdict in (Verdict.PASS, Verdict.KNOWN):
                records = {name: events for kind, name, events in found if kind is verdict}
                write_records(area, read_records(area, verdict) | records, verdict)


def write_records(area: Area, records: dict[str, list[Event]], verdict: Verdict) -> None:
    """Keep ``records`` of cases that ended in ``verdict``."""
    if records:
        if isinstance(area, GuestArea):
            records = {name: [_without_small_mappings(event) for event in events] for name, events in records.items()}
        text = json.dumps(records, sort_keys=True)
        # no time in it: the same records are the same file
        record_file(area, verdict).write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{area.name}: {len(records)} records of {verdict.value}")  # noqa: T201


def _without_small_mappings(event: Event) -> Event:
    """Return ``event`` with as much of the smaps of a QEMU as cases on guests look at.

    Of its hundreds of mappings these are what may be a guest's memory, and all that have huge pages of some kind.
    """
    path, text = str(event["arguments"][0]) if event["arguments"] else "", event.get("result")
    if event["operation"] != "observe" or not path.endswith("/smaps") or not text:
        return event
    first, *others = _NEXT_MAPPING.split(text)
    return event | {"result": "\n".join([first.rstrip("\n"), *filter(_MAY_BE_OF_A_GUEST.search, others)])}


def record_file(area: Area, verdict: Verdict = Verdict.PASS) -> Path:
    """Return where the records of ``area`` are."""
    kind = "" if verdict is Verdict.PASS else f"{verdict.value}-"
    return RECORDS / f"{kind}{area.name.replace('/', '-')}.json.gz"


def read_records(area: Area, verdict: Verdict = Verdict.PASS) -> dict[str, list[Event]]:
    """Return ``case/size``, or ``case`` for one that runs once, -> events; empty without records."""
    file = record_file(area, verdict)
    records: dict[str, list[Event]] = json.loads(gzip.decompress(file.read_bytes())) if file.exists() else {}
    return records


@contextmanager
def _machine(area: Area) -> Iterator[Backend]:
    with tempfile.TemporaryDirectory(prefix="guest-") as scratch:
        start = guest_machine if isinstance(area, GuestArea) else real_machine
        with start(Path(scratch)) as machine:
            yield machine


@contextmanager
def _throwaway(settings: Settings, architecture: str, words: str) -> Iterator[Backend]:
    kernel = find_kernel(architecture, settings)
    # a machine for gigantic pages (cases/throwaway_run.py)
    cpu = find_board(architecture).default_cpu
    machine = VirtualMachine(
        kernel, cpu, (6 * GIB, 5 * GIB), f"init_on_alloc=0 {words}".strip(), cpus=2, runs_guests=True
    )
    with tempfile.TemporaryDirectory() as scratch, start_agent_machine(machine, cache_directory()) as running:
        running.await_agent()
        yield ThrowawayMachine(running, Path(scratch))


def _record_on(area: Area, machine: Backend, names: list[str]) -> Iterator[tuple[Verdict, str, list[Event]]]:
    sizes = sorted(read_pool_view(Host(machine)).pools)
    for case in area.cases:
        if names and case.name not in names:
            continue
        # the smallest on which a case passes makes the shortest record
        for size in [None] if case.sizes is Sizes.ONCE else sizes:
            judgement, events = _run(area, case, size, machine)
            if judgement and judgement.verdict in (Verdict.PASS, Verdict.KNOWN):
                yield judgement.verdict, judgement.name.removeprefix(f"/{area.name}/"), events
            if judgement and judgement.verdict is Verdict.PASS:
                break
            if judgement:
                print(f"{judgement.name}: {judgement.verdict.value}: {judgement.reason}")  # noqa: T201


def _run(area: Area, case: Case, size: int | None, machine: Backend) -> tuple[Result | None, list[Event]]:
    recorder = Recorder(machine)
    return judge(area, case, Host(recorder), size), recorder.events


if __name__ == "__main__":
    main()
