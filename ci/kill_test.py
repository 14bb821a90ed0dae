"""The kill test: a run that changes the machine is killed at a random moment, and the next start puts all back.

    python ci/kill_test.py [--times 100] [--seconds 2] [--seed 1] [COMMAND ...]

COMMAND is the run, by default ci/changing_run.py; it must protect the machine. In every third round or so the start
that puts the machine back is killed, too, and then the next one. Compared is the whole state of the machine before and
after. Needs root, and a machine on which nobody else changes huge pages meanwhile.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.machine.journal import find_journal
from hugepage_qa.machine.kept_file import read_kept_file
from hugepage_qa.machine.protection import protected_machine
from hugepage_qa.machine.saved_state import MachineState
from hugepage_qa.machine.snapshot import Snapshot, differences, take_snapshot
from hugepage_qa.process.process_table import find_processes

ROOT = Path(__file__).resolve().parent.parent

#: where other programs make files and mounts meanwhile
BUSY = (ROOT, Path(tempfile.gettempdir()), Path.home() / ".cache")
#: what runs write for the next boot
SYSCTL_FILE = Path("/etc/sysctl.d/99-hugepage-qa.conf")

_MOST_KILLS = 3
_MORE_KILLS = 1 / 3


def main() -> int:
    """Run all rounds; the exit code is 0 when the machine was as before after each, and was changed in some."""
    parser = Parser(description="Kill runs at random moments, and see that the next puts all back.")
    parser.add_argument("--times", type=int, default=100, help="rounds (default 100)")
    parser.add_argument("--seconds", type=float, default=2.0, help="the latest moment of a kill (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments (default 1)")
    parser.add_argument("command", nargs="*", help="the run (default ci/changing_run.py)")
    options = parser.parse_args()
    command = options.command or [sys.executable, str(ROOT / "ci" / "changing_run.py"), str(options.seconds)]
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    good = cut_off = 0
    with tempfile.TemporaryDirectory(prefix="kill-test-") as temporary:
        for number in range(1, options.times + 1):
            changes, was_cut_off = run_round(command, options.seconds, moments, Path(temporary))
            good += not changes
            cut_off += was_cut_off
            for change in changes:
                print(f"round {number}: {change}")
    print(f"{good} of {options.times} put back ({cut_off} were killed while the machine was changed)")
    return ExitCode.GOOD if good == options.times and cut_off else ExitCode.BAD


def run_round(
    command: Sequence[str], seconds: float, moments: random.Random, temporary: Path
) -> tuple[list[str], bool]:
    """Return what is not as before after a killed run and the start after it, and whether there was a journal.

    The run makes its temporary files in the directory ``temporary``: in /tmp, other programs make theirs.
    """
    before = whole_state(temporary)
    run_ids = set()
    for _ in range(_MOST_KILLS):
        kill_at(command, moments.uniform(0, seconds), temporary)
        record = find_journal().read()
        run_ids |= {record.run_id} if record else set()
        if moments.random() > _MORE_KILLS:
            break
    with protected_machine("the start after a kill", say=lambda _: None) as protection:
        pass
    left = [f"{repair}" for repair in protection.unrestored]
    left += [f"process {pid} ({name}) runs on" for one in run_ids for pid, name in find_processes(one).items()]
    return left + differences(before, whole_state(temporary)), bool(run_ids)


def kill_at(command: Sequence[str], moment: float, temporary: Path) -> None:
    """Start ``command`` and kill it, and nothing that it has started, after ``moment`` seconds."""
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        time.sleep(moment)
        run.send_signal(signal.SIGKILL)


def whole_state(temporary: Path) -> Snapshot:
    """Return all that a run may change."""
    files = {
        str(find_journal().path): "none" if find_journal().read() is None else "there",
        str(SYSCTL_FILE): str(read_kept_file(SYSCTL_FILE)),
        str(temporary): " ".join(sorted(path.name for path in temporary.iterdir())),
    }
    snapshot = take_snapshot(BUSY)
    state = {**snapshot.values, **snapshot.made, **MachineState.read().values(), **files}
    return Snapshot({subject: value for subject, value in state.items() if not is_of_others(subject, temporary)})


def is_of_others(subject: str, temporary: Path) -> bool:
    """Tell whether ``subject`` is an emulator or a mount of another program; our processes are found by run id."""
    if subject.startswith("process "):
        return True
    point = Path(subject.removeprefix("mount "))
    return any(map(point.is_relative_to, BUSY)) and not point.is_relative_to(temporary)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"kill test: {error}", file=sys.stderr)
        sys.exit(ExitCode.BROKEN)
