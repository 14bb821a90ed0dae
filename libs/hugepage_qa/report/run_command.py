"""The command ``hugepage-qa run``."""

import sys

import click

from hugepage_qa.report.run import run_references
from hugepage_qa.report.settings import describe_settings
from hugepage_qa.report.vt_provider import VT_TYPES


@click.command(
    name="run",
    epilog="Example: HUGEPAGE_QA_ARCH=aarch64 hugepage-qa run tests/boot/boot_parameters.py",
    help=f"""Run Avocado tests; the results go to tmt when it started us, else to the terminal.

    REFERENCES are what "avocado list" understands: files, or FILE:CLASS.METHOD;
    with --vt-type what avocado-vt does: names of variants, as in hugepages..refuse.

    \b
    The tests read these environment variables:
    {describe_settings(indent=4)}

    Exit code: 0 good, 1 a case failed, 2 every case was skipped, 3 the suite or its input is wrong.
    """,
)
@click.option(
    "--change-machine",
    is_flag=True,
    help="The tests change this machine (root): save it before, put it back after, one run at a time.",
)
@click.option(
    "--vt-type",
    type=click.Choice(VT_TYPES),
    help="The tests are those of the avocado-vt provider in this directory: bootstrap it, without a download.",
)
@click.argument("references", nargs=-1, required=True)
def run_command(references: tuple[str, ...], change_machine: bool, vt_type: str | None) -> None:
    """Run Avocado tests and end with the exit code of the suite."""
    sys.exit(run_references(references, change_machine=change_machine, vt_type=vt_type))
