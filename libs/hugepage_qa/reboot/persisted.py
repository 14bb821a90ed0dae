"""vm.nr_hugepages in sysctl.d: what systemd-sysctl writes at boot, and what a machine must show then."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.model.prediction import (
    Between,
    Exactly,
    Expectation,
    Message,
    PreAllocated,
    Prediction,
    SumOf,
    pool_subject,
)
from hugepage_qa.model.rules import Rule

#: our own file; few names come after it
OWN_FILE = Path("/etc/sysctl.d/99-hugepage-qa.conf")

SYSCTL_WINS = Rule(
    "sysctl-wins-later",
    "vm.nr_hugepages in sysctl.d sets the pool of the default size after the boot, whatever hugepages= reserved",
    "sysctl.d(5); Documentation/admin-guide/mm/hugetlbpage.rst nr_hugepages",
)

# the first directory that has a file of some name masks the others (sysctl.d(5))
_DIRECTORIES = ("etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d")
_ASSIGNMENT = re.compile(r"\s*-?vm[./]nr_hugepages\s*=\s*(?P<pages>[0-9]{1,18})\s*")


@dataclass(frozen=True)
class Persisted:
    """The value that is written last, in pages, and the file that it stands in."""

    pages: int
    path: Path


def read_persisted(root: Path = Path("/")) -> Persisted | None:
    """Return what systemd-sysctl makes of vm.nr_hugepages, None where no file sets it. Raises InputError."""
    last = None
    for path in _files(root):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}): expected to be root") from error
        for line in text.splitlines():
            if match := _ASSIGNMENT.fullmatch(line):
                last = Persisted(int(match["pages"]), path)
    return last


def own_text(pages: int) -> str:
    """Return the text of our own file that sets vm.nr_hugepages to ``pages``."""
    return f"# written by hugepage-qa reboot-cases, which removes it\nvm.nr_hugepages = {pages}\n"


def after_sysctl(prediction: Prediction, pages: int, memory: int) -> Prediction:
    """Return ``prediction`` for the moment after vm.nr_hugepages was set to ``pages``.

    They all come where half of the machine's ``memory`` (bytes) holds them, else any number of them; from which nodes
    is left to the kernel. The log still tells what was reserved at boot.
    """
    size = next(
        (
            one.expected.value
            for one in prediction.expectations
            if one.subject == "meminfo/Hugepagesize" and isinstance(one.expected, Exactly)
        ),
        None,
    )
    if not isinstance(size, int):
        return prediction
    pool = pool_subject(size, "nr_hugepages")
    # the machine's and those of the nodes
    counts = {one.subject for one in prediction.expectations if one.subject.endswith(pool)} | {"vm/nr_hugepages"}
    at_boot = [one for one in prediction.expectations if one.subject in counts and _is_count(one)]
    kept = tuple(one for one in prediction.expectations if one not in at_boot)
    reserved = next((one.expected for one in at_boot if one.subject == pool), None)
    lines = [one for one in prediction.pre_allocated if one.subject == pool]
    return replace(
        prediction,
        expectations=(
            *kept,
            Expectation(pool, Exactly(pages) if pages * size <= memory // 2 else Between(0, pages), SYSCTL_WINS),
            Expectation("vm/nr_hugepages", SumOf(((pool, 1),)), SYSCTL_WINS),
        ),
        pre_allocated=tuple(one for one in prediction.pre_allocated if one not in lines),
        messages=(*prediction.messages, *(_log_line(one, reserved) for one in lines if isinstance(reserved, Exactly))),
        shortages=tuple(one for one in prediction.shortages if one.subject not in counts),
    )


def _is_count(expectation: Expectation) -> bool:
    return isinstance(expectation.expected, Exactly | Between)


def _log_line(line: PreAllocated, reserved: Exactly) -> Message:
    return Message(f"registered {line.size} page size, pre-allocated {reserved} pages", line.rule)


def _files(root: Path) -> Iterator[Path]:
    """Yield the files in the order in which they are applied: by name, whatever directory they are in."""
    found: dict[str, Path] = {}
    for directory in _DIRECTORIES:
        for path in sorted((root / directory).glob("*.conf")):
            found.setdefault(path.name, path)
    for _, path in sorted(found.items()):
        # a link to /dev/null switches a file off
        if path.resolve() != Path("/dev/null"):
            yield path
