"""How long ``hugepage-qa report merge`` takes: python -m tests.bench.merge_runs [RUNS]."""

import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.made_up_runs import KERNELS, MadeUpRun

CASES = 400
TARGET = 60
_KIB, _MIB = 1 << 10, 1 << 20


def main() -> int:
    """Merge 1,000 made-up runs of 400 cases and print the figure; 1 when it misses the target."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with TemporaryDirectory() as directory:
        architectures = list(KERNELS)
        for number in range(runs):
            run = MadeUpRun(number, architectures[number % len(architectures)], CASES, samples=True)
            run.write(Path(directory, "runs", f"{number:05}"))
        command = [str(Path(sys.executable).with_name("hugepage-qa")), "report", "merge"]
        directories = [str(path) for path in sorted(Path(directory, "runs").iterdir())]
        started = time.monotonic()
        done = subprocess.run(
            [*command, *directories, "--output", f"{directory}/report"], capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - started
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(  # noqa: T201 - the figure is what it is for
        f"merge {runs} runs of {CASES} cases: {seconds:.1f} s ({usage.ru_utime + usage.ru_stime:.1f} s of CPU), "
        f"{usage.ru_maxrss * _KIB / _MIB:.0f} MiB (target: under {TARGET} s): "
        f"{(done.stdout or done.stderr).splitlines()[0]}"
    )
    return 0 if done.returncode == 0 and seconds < TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
