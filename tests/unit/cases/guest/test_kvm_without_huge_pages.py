"""The case on kvm.hpage, on an s390x machine that was made up: no machine that records are made on is one."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.unit.cases.areas import read_areas

from hugepage_qa.cases.guest.guest_machine import DONE, GUEST, REFUSED
from hugepage_qa.cases.judge import judge
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.backend import MachineKind
from hugepage_qa.machine.host import Host
from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.sizes import KIB, MIB

POOL = "sys/kernel/mm/hugepages/hugepages-1024kB"
#: hw/s390x/s390-virtio-ccw.c and target/s390x/kvm/kvm.c
OFF = "Memory backing with 1M pages was specified, but KVM does not support this memory backing"


class Mainframe:
    """A machine with pages of 1 MiB and ``hpage``, on which a start ends with ``answer`` and keeps ``kept`` pages."""

    kind = MachineKind("s390x", 4 * KIB)

    def __init__(self, site: Site, hpage: str, answer: dict[str, Any], kept: int = 0) -> None:
        self.site, self.hpage, self.answer, self.kept = site, hpage, answer, kept
        self.nr = self.taken = 0
        self.state = "off"

    def perform(self, operation: str, arguments: Sequence[Any]) -> Any:
        match operation:
            case "read" | "observe":
                return self._files().get(arguments[0])
            case "names":
                prefix = f"{arguments[0]}/"
                return sorted({path[len(prefix) :].split("/")[0] for path in self._files() if path.startswith(prefix)})
            case "write":
                if arguments[0].endswith("/nr_hugepages"):
                    # a page in use stays
                    self.nr = max(int(arguments[1]), self.taken)
                return None
            case "new_kernel_log" | "skip_kernel_log":
                return []
            case _:
                assert operation == GUEST
                return self._guest(arguments[1])

    def _guest(self, action: str) -> dict[str, Any]:
        match action:
            case "site":
                return {DONE: asdict(self.site)}
            case "start":
                self.taken = self.kept
                self.state = "off" if REFUSED in self.answer else "paused"
                return self.answer
            case "state":
                return {DONE: self.state}
            case _:
                return {DONE: None}

    def _files(self) -> dict[str, str]:
        free = self.nr - self.taken
        counts = {"Total": self.nr, "Free": free, "Rsvd": 0, "Surp": 0}
        return {
            "proc/sys/kernel/osrelease": "6.12.5\n",
            "proc/sys/kernel/tainted": "0\n",
            "proc/buddyinfo": "Node 0, zone Normal 1 1 1 1 1 1 1 1 1 1 1\n",
            "proc/meminfo": "MemAvailable: 9000000 kB\nHugepagesize: 1024 kB\n"
            + "".join(f"HugePages_{name}: {count}\n" for name, count in counts.items()),
            "proc/self/mounts": "",
            "sys/module/kvm/parameters/hpage": self.hpage,
            f"{POOL}/nr_hugepages": f"{self.nr}\n",
            f"{POOL}/free_hugepages": f"{free}\n",
            f"{POOL}/resv_hugepages": "0\n",
            f"{POOL}/surplus_hugepages": "0\n",
            f"{POOL}/nr_overcommit_hugepages": "0\n",
        }


@pytest.fixture
def site(site: Site) -> Site:
    return replace(site, architecture="s390x", machine="s390-ccw-virtio", accelerator="kvm", mounts={MIB: "/huge"})


def verdict(machine: Mainframe) -> Result:
    area = next(area for area in read_areas() if area.name == "guest/refuse/libvirt")
    case = next(case for case in area.cases if case.name == "kvm-without-huge-pages")
    judgement = judge(area, case, Host(machine), MIB)
    assert judgement is not None
    return judgement


def test_a_refusal_for_this_reason_passes(site: Site) -> None:
    judgement = verdict(Mainframe(site, "0\n", {REFUSED: OFF}))
    assert judgement.verdict is Verdict.PASS, judgement.reason


@pytest.mark.parametrize(
    ("answer", "kept", "found"),
    [
        ({DONE: None}, 0, "success"),
        ({REFUSED: "unable to map backing store for guest RAM: Cannot allocate memory"}, 0, "unable to map"),
        ({REFUSED: OFF}, 1, "free"),
    ],
)
def test_anything_else_fails(site: Site, answer: dict[str, Any], kept: int, found: str) -> None:
    judgement = verdict(Mainframe(site, "N\n", answer, kept))
    assert judgement.verdict is Verdict.FAIL
    assert found in judgement.reason


@pytest.mark.parametrize(
    ("changed", "hpage", "why"),
    [
        ({"architecture": "x86_64"}, "0", "x86_64 has no switch"),
        ({"accelerator": "tcg"}, "0", "guests run under tcg"),
        ({}, "1", "kvm.hpage is on"),
    ],
)
def test_elsewhere_it_is_skipped(site: Site, changed: dict[str, Any], hpage: str, why: str) -> None:
    judgement = verdict(Mainframe(replace(site, **changed), hpage, {REFUSED: OFF}))
    assert judgement.verdict is Verdict.SKIP
    assert why in judgement.reason
