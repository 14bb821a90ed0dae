"""Measure what a start and end of a guest costs through the suite, against the same through virsh by hand.

Needs root, virsh, and an empty machine: it reserves the pages of one guest of 128 MiB and gives them back.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from hugepage_qa.cases.guest.guest import Guest
from hugepage_qa.cases.guest.guest_machine import LIBVIRT, guest_machine
from hugepage_qa.cases.guest.guests import Guests
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pool_view import read_pool_view
from hugepage_qa.machine.host import CannotRun, Host
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.oracle.rules import Rule
from hugepage_qa.qemu.guest.driver import GuestError

ROUNDS = 15
TARGET = 1.15

_BENCH = Rule("bench", "", "")


def main() -> int:
    """Print the medians and their ratio; 1 when the target is missed, 3 when it cannot be measured."""
    with protected_machine("ci/bench_guest.py"), tempfile.TemporaryDirectory(prefix="guest-") as scratch:
        try:
            ours, by_hand = _measure(Path(scratch))
        except (CannotRun, GuestError, OSError) as error:
            print(f"bench_guest: {error}", file=sys.stderr)
            return 3
    ratio = median(ours) / median(by_hand)
    print(f"start and end of a guest, median of {ROUNDS}: {median(ours):.3f} s, through virsh {median(by_hand):.3f} s")
    print(f"ratio {ratio:.2f}, target {TARGET}")
    return 0 if ratio <= TARGET else 1


def _measure(scratch: Path) -> tuple[list[float], list[float]]:
    with guest_machine(scratch) as machine, ExitStack() as stack:
        host = Host(machine)
        live = Live(host, min(read_pool_view(host).pools), _BENCH, stack)
        guests = Guests(live, LIBVIRT)
        guest = guests.new()
        live.reserve(guest.pages)
        uri = f"qemu:///system?socket={guests.site.directory}/libvirt-sock"
        definition = scratch / "guest.xml"
        definition.write_text(guest.definition, encoding="utf-8")
        ours, by_hand = [], []
        for _ in range(ROUNDS):
            # one after the other: what else the machine does is the same for both
            ours.append(_timed(lambda: _through_the_suite(guest)))
            by_hand.append(_timed(lambda: _by_hand(uri, definition, guest.name)))
        return ours, by_hand


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _through_the_suite(guest: Guest) -> None:
    guest.define()
    guest.start()
    guest.destroy()


def _by_hand(uri: str, definition: Path, name: str) -> None:
    for words in (["define", str(definition)], ["start", name, "--paused"], ["destroy", name], ["undefine", name]):
        subprocess.run(["virsh", "--quiet", "--connect", uri, *words], check=True, stdout=subprocess.DEVNULL)  # noqa: S607


if __name__ == "__main__":
    sys.exit(main())
