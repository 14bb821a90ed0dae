"""Do the fixes that reports for upstream suggest mend the bugs?

    python -m ci.seeded_kernel.fix_trials build/seeded-kernel/7.3/bzImage
    python -m ci.seeded_kernel.fix_trials build/seeded-kernel/7.3/bzImage --fault fix-of-fork-loses-pages

The reproducer of each bug runs on the kernel as it is, and once more with the fix. A fix mends its bug where the first
one has the bug, and the second one is right.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ci.seeded_kernel.faults import SUGGESTED_FIXES, Fault, choose, read_faults
from ci.seeded_kernel.seeded_image import SeededImage
from ci.seeded_kernel.seeded_source import HEALTHY

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.cases.upstream.reproduction import Answer, Reproduction, bug_reports, reproduce
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.packages import cache_directory

_PREFIX = "fix-of-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the fixes of an image and return the exit code: 0 when each mends its bug, 1 when one does not."""
    parser = Parser("fix-trials", description="Show that each suggested fix mends its bug.")
    parser.add_argument("kernel", type=Path, help="image that make seeded-kernel built")
    parser.add_argument("--fault", action="append", default=[], help="this fix alone; repeatable  [all]")
    options = parser.parse_args(arguments)
    try:
        image = SeededImage(options.kernel)
        fixes = image.choose(choose(read_faults(SUGGESTED_FIXES), options.fault))
        print(f"{image.kernel.release}: {len(fixes)} fixes", flush=True)
        mended = [fix for fix in fixes if _mends(fix, image)]
    except InputError as error:
        print(f"fix-trials: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    print(f"{len(mended)} of {len(fixes)} fixes mend their bugs")
    return ExitCode.GOOD if len(mended) == len(fixes) else ExitCode.BAD


def _mends(fix: Fault, image: SeededImage) -> bool:
    """Tell whether ``fix`` mends its bug, and print what the reproducer found without it and with it."""
    without, mended = (_tried(fix, image, chosen) for chosen in (HEALTHY, fix.name))
    print(f"{fix.name}: {_told(without)} -> {_told(mended)}", flush=True)
    return (without.answer, mended.answer) == (Answer.BUG, Answer.RIGHT)


def _tried(fix: Fault, image: SeededImage, chosen: str) -> Reproduction:
    report = bug_reports()[fix.name.removeprefix(_PREFIX)]
    return reproduce(report, image.kernel, cache_directory(), f"seeded_fault={chosen}")


def _told(found: Reproduction) -> str:
    return f"{found.answer.name.lower()} ({found.reason or ' / '.join(found.lines)})"


if __name__ == "__main__":
    sys.exit(main())
