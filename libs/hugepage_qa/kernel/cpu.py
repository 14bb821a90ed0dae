"""The processor as far as huge pages depend on it: /proc/cpuinfo and the size of a base page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hugepage_qa.kernel.smaps import read_base_page_size
from hugepage_qa.kernel.tree import Tree

_FIELD = re.compile(r"(?P<name>[^:\t]*[^:\s])\s*:\s*(?P<value>.*)")
# "processor : 0"; s390 prints "processor 0: version = FF,  identification = 000000,  machine = 3906"
_PROCESSOR = re.compile(r"processor(?:\s*:\s*[0-9]+| [0-9]+:.*)\s*")
_S390_MACHINE = re.compile(r"processor [0-9]+:.*machine = (?P<machine>\w+)")

# x86, arm64, s390
_FEATURE_FIELDS = ("flags", "Features", "features")
# s390 tells of pages of 1M and 2G only by the number of the facility (Principles of Operation, "Facility indications")
_S390_FACILITIES = {"8": "edat1", "78": "edat2"}


@dataclass(frozen=True)
class Cpu:
    """The processors of a machine; they are taken to be alike.

    ``base_page_size`` is in bytes. ``features`` are the kernel's own words (``pdpe1gb``), on s390 with
    ``edat1`` and ``edat2`` added. ``mmu`` is what powerpc runs with: ``Radix`` or ``Hash``, None elsewhere.
    """

    base_page_size: int | None
    features: frozenset[str]
    mmu: str | None
    count: int
    model: str | None


def read_cpu(tree: Tree) -> Cpu:
    """Return what the kernel says of the processors; unknown parts are None, empty or 0. Raises InputError."""
    lines = (tree.read("proc/cpuinfo") or "").split("\n")
    matches = (_FIELD.fullmatch(line.rstrip()) for line in reversed(lines))
    # of a name that is there for each processor the first one counts
    fields = {match["name"]: match["value"] for match in matches if match}
    return Cpu(
        base_page_size=read_base_page_size(tree),
        features=_features(fields),
        mmu=fields.get("MMU"),
        count=sum(1 for line in lines if _PROCESSOR.fullmatch(line)),
        model=_model(lines, fields),
    )


def _features(fields: Mapping[str, str]) -> frozenset[str]:
    words = {word for name in _FEATURE_FIELDS for word in fields.get(name, "").split()}
    facilities = fields.get("facilities", "").split()
    return frozenset(words | {_S390_FACILITIES[number] for number in facilities if number in _S390_FACILITIES})


def _model(lines: Sequence[str], fields: Mapping[str, str]) -> str | None:
    if "model name" in fields:  # x86
        return fields["model name"]
    if "CPU part" in fields:  # arm64
        return f"implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    machine = next((match["machine"] for line in lines if (match := _S390_MACHINE.match(line))), None)
    return f"machine {machine}" if machine else fields.get("cpu")  # s390, powerpc
