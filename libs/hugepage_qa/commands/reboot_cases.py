"""``hugepage-qa reboot-cases``: huge pages through the machine's own boot loader and sysctl.d, over reboots."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from hugepage_qa.cases.reboot.reboot_chain import Chain
from hugepage_qa.cases.reboot.reboot_machine import MachineUnderTest
from hugepage_qa.cases.result import ExitCode, Result, Verdict, exit_code, one_line
from hugepage_qa.errors import InputError
from hugepage_qa.machine.protection import require_root
from hugepage_qa.report.avocado_results import JOB
from hugepage_qa.report.tmt_results import write_results

_REBOOT = "tmt-reboot"


@click.command(name="reboot-cases", epilog="Example: hugepage-qa reboot-cases --case /reboot/default-size")
@click.option("--case", "names", multiple=True, metavar="NAME", help="One of the cases; repeatable.  [default: all]")
def reboot_cases(names: tuple[str, ...]) -> None:
    """Boot this machine with huge page parameters, one reboot after the other, and judge each boot.

    A tmt test calls it, and tmt starts it again after every reboot: it needs tmt-reboot, TMT_TEST_DATA and root. The
    arguments go through the machine's boot loader, and what its tool loses is a failure. At the end the machine is as
    it was, and compared with that. Each case is a result in $TMT_TEST_DATA/results.yaml.

    Exit code: 0 good or a reboot is on its way, 1 a case failed, 2 every case was skipped, 3 the tool or its input is
    wrong.
    """
    data, tmt_reboot = _tmt()
    require_root("reboot-cases")
    results: list[Result] = []

    def report(found: Sequence[Result]) -> None:
        results[:] = [
            replace(one, reasons=tuple(map(one_line, one.reasons)), logs=tuple(data / log for log in one.logs))
            for one in found
        ]
        write_results(results, data)

    try:
        rebooting = Chain(MachineUnderTest(tmt_reboot), data, report, click.echo).start(_boot_number(), names)
    except InputError as error:
        # the other results stay as the last boot has left them; tmt shows them beside this one
        write_results([*results, Result(JOB, Verdict.ERROR, (one_line(str(error)),))], data)
        raise
    sys.exit(ExitCode.GOOD if rebooting else exit_code(result.verdict for result in results))


def _tmt() -> tuple[Path, str]:
    """Return the data directory of the test and the path of tmt-reboot. Raises InputError where tmt is not."""
    data, tmt_reboot = os.environ.get("TMT_TEST_DATA"), shutil.which(_REBOOT)
    if not data or tmt_reboot is None:
        missing = "TMT_TEST_DATA" if not data else f"{_REBOOT} in PATH"
        raise InputError(
            f"reboot-cases: expected tmt to start it, there is no {missing}: run the tests in tests/reboot"
        )
    if not Path(data).is_dir():
        raise InputError(f"TMT_TEST_DATA={data}: expected a directory")
    return Path(data), tmt_reboot


def _boot_number() -> int:
    text = os.environ.get("TMT_REBOOT_COUNT") or "0"
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"TMT_REBOOT_COUNT={text}: expected a whole number")
    return int(text)
