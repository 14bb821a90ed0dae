"""Programs that change boot loaders: how they are found and run."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from hugepage_qa.errors import InputError

# they build images (kernel-install) or check out a deployment (rpm-ostree) at times
_DEADLINE = 600.0
# where the tools are, though not in the PATH of every login
_SYSTEM_DIRECTORIES = "/usr/local/sbin:/usr/sbin:/sbin"
# their output is read: without translation, colours and pager
_ENVIRONMENT = {"LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat"}


def find_tool(*names: str) -> str | None:
    """Return the first of the programs ``names`` that is installed, as an absolute path."""
    return next((path for name in names if (path := shutil.which(name, path=_search_path()))), None)


def run_tool(command: Sequence[str]) -> str:
    """Run ``command`` and return what it printed; raises InputError, with its output in one line, when it fails."""
    environment = os.environ | _ENVIRONMENT | {"PATH": _search_path()}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            check=False,
        )
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{' '.join(command)}: has not ended after {_DEADLINE:g} s") from error
    if done.returncode != 0:
        printed = " | ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip())
        raise InputError(f"{' '.join(command)}: ended with exit code {done.returncode}: {printed or 'no output'}")
    return done.stdout


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_DIRECTORIES}"
