"""The power-cut test: a system machine loses power while it has kernel arguments of a case, and gets its own back.

    python ci/power_cut_test.py [--times 5] [--seconds 40] [--seed 1]

Each round starts the reboot cases on the machine, takes the power away at a random moment, and has the machine boot.
The systemd unit of "hugepage-qa state install-unit" puts it back then, or "hugepage-qa state restore" where the cut
looked like the reboot that the run had asked for. Compared are the files of the boot loader and of sysctl.d, and in
the end the kernel's command line of one more boot. Needs what "hugepage-qa lab up" needs; about two minutes a round.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hugepage_qa.cache import cache_directory
from hugepage_qa.cases.result import ExitCode
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.machine_registry import Registry
from hugepage_qa.qemu.system.system_launch import SystemOptions, bring_up
from hugepage_qa.qemu.system.system_machine import SystemMachine
from hugepage_qa.sizes import GIB

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 900.0

SUITE = "/opt/hugepage-qa/bin/hugepage-qa"
DATA = "/root/data"
# stands for tmt's: the machine goes on until its power is cut
TMT_REBOOT = "#!/bin/sh\nexec sleep 3600\n"
RUN = f"cd / && mkdir -p {DATA} && TMT_REBOOT_COUNT=0 TMT_TEST_DATA={DATA} PATH=/root/bin:$PATH {SUITE} reboot-cases"
FILES = "sha256sum /etc/default/grub /etc/default/grub.d/* /boot/grub/grub.cfg /etc/sysctl.d/* 2>/dev/null"


def main() -> int:
    """Run all rounds; the exit code is 0 when the machine was as before after each, and was changed in some."""
    parser = Parser(description="Cut the power of runs; the next boot puts all back.")
    parser.add_argument("--times", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--seconds", type=float, default=40.0, help="the latest moment of a cut (default 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the random moments (default 1)")
    options = parser.parse_args()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    machine = bring_up(cache_directory(), SystemOptions(memory=(2 * GIB, 2 * GIB)), deadline=DEADLINE, report=print)
    try:
        install(machine)
        good = changed = 0
        for number in range(1, options.times + 1):
            was_changed, problems = run_round(machine, moments.uniform(0, options.seconds))
            good += not problems
            changed += was_changed
            for problem in problems:
                print(f"round {number}: {problem}")
    finally:
        Registry(cache_directory()).drop(machine.record.name)
    print(f"{good} of {options.times} put back ({changed} lost power with arguments of a case)")
    return ExitCode.GOOD if good == options.times and changed else ExitCode.BAD


def install(machine: SystemMachine) -> None:
    """Put the suite on the machine, the unit that puts it back at boot, and a tmt-reboot that does nothing."""
    print("installing the suite in the machine, minutes")
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=archive, check=True)  # noqa: S607
        archive.seek(0)
        unpack = machine.shell.command_line(["mkdir -p /root/tree && tar -x -C /root/tree"])
        subprocess.run(unpack, stdin=archive, check=True)
    machine.shell.run(["/root/tree/ci/install.sh"], timeout=DEADLINE)
    write_tmt_reboot = f"mkdir -p /root/bin && printf '%s' '{TMT_REBOOT}' >/root/bin/tmt-reboot && chmod +x /root/bin/*"
    machine.shell.run(["sh", "-c", write_tmt_reboot])
    machine.shell.run([SUITE, "state", "install-unit"])
    machine.shell.run(["sync"])


def run_round(machine: SystemMachine, moment: float) -> tuple[bool, list[str]]:
    """Cut the power ``moment`` seconds after a run began; return whether files were changed, and what is not back."""
    before = look(machine)
    machine.shell.run(["rm", "-rf", DATA])
    with subprocess.Popen(
        machine.shell.command_line([RUN]), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as connection:
        time.sleep(moment)
        changed = look(machine) != before
        machine.power_cut()
        connection.kill()
    machine.power_on(DEADLINE)
    machine.shell.run([SUITE, "state", "restore"], timeout=DEADLINE)
    problems = [f"cut after {moment:.1f} s: {line}" for line in sorted(set(look(machine)) ^ set(before))]
    print(f"cut after {moment:.1f} s, {'changed' if changed else 'not yet changed'}: {'bad' if problems else 'good'}")
    return changed, problems + different_boot(machine)


def look(machine: SystemMachine) -> list[str]:
    """Return a line for each file that decides about the next boot."""
    return machine.shell.run(["sh", "-c", FILES + " || true"]).splitlines()


def different_boot(machine: SystemMachine) -> list[str]:
    """Boot once more, and return what is wrong with the kernel's command line."""
    machine.reboot(DEADLINE)
    words = machine.shell.run(["cat", "/proc/cmdline"]).split()
    return [f"{word} in the kernel's command line" for word in words if "huge" in word]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"power-cut test: {error}", file=sys.stderr)
        sys.exit(ExitCode.BROKEN)
