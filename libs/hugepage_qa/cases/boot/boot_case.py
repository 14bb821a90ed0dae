"""Named cases: a command line, a machine to boot it on, and what the kernel's documents say of it.

Cases are YAML files in ``cases``, one file a group. They name page sizes by what they are on the machine and speak in
bytes or fractions of its memory, so that one case serves every architecture that has these sizes:

{default}  the architecture's default size       {large}  its largest gigantic size up to 1 GiB
{other}    a further size that is not gigantic   {64M/default}  the number of such pages in 64 MiB
{3/5/default}  the number of such pages in three fifths of the memory
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from hugepage_qa.cases.boot.case_groups import choose_groups
from hugepage_qa.errors import InputError
from hugepage_qa.oracle.architecture import Mmu
from hugepage_qa.oracle.boot.unknown_parameters import PARAMETERS
from hugepage_qa.oracle.prediction import pool_subject
from hugepage_qa.sizes import GIB, format_size, parse_memory, parse_size

SIZE_NAMES = ("default", "large", "other")

#: between the name of a case and the CPU that it is tried on
CPU_MARK = "@"

_PLACEHOLDER = re.compile(
    rf"\{{(?:(?P<amount>[0-9]+[KMG]?|[0-9]{{1,3}}/[1-9][0-9]{{0,2}})/)?(?P<size>{'|'.join(SIZE_NAMES)})\}}"
)
_FRACTION = re.compile(r"(?P<part>[0-9]{1,3})/(?P<whole>[1-9][0-9]{0,2})")


class NotApplicable(Exception):
    """The machine does not have what the case is about; the message is the fact that proves it."""


@dataclass(frozen=True)
class Amounts:
    """What the names stand for on one machine: page sizes and, where it is known, all of its memory, in bytes."""

    sizes: Mapping[str, int]
    memory: int | None = None

    def size(self, name: str) -> int:
        """Return the page size ``name`` in bytes; raises NotApplicable where the machine has none."""
        if name not in self.sizes:
            raise NotApplicable(f"the machine has no {name} page size")
        return self.sizes[name]

    def pages(self, amount: str, name: str) -> int:
        """Return how many pages of the size ``name`` there are in ``amount``. Raises InputError, NotApplicable."""
        size = self.size(name)
        if match := _FRACTION.fullmatch(amount):
            if self.memory is None:
                raise InputError(f"amount {amount!r}: expected bytes, the memory of the machine is not known here")
            return self.memory * int(match["part"]) // int(match["whole"]) // size
        return parse_size(amount) // size

    def fill(self, text: str) -> str:
        """Return ``text`` with sizes and numbers in place of the names in braces. Raises InputError, NotApplicable."""

        def value(match: re.Match[str]) -> str:
            if match["amount"] is None:
                return format_size(self.size(match["size"]))
            return str(self.pages(match["amount"], match["size"]))

        filled = _PLACEHOLDER.sub(value, text)
        if "{" in filled:
            raise InputError(
                f"case with {text!r}: expected {{default}}, {{large}}, {{other}} or {{64M/default}} in braces"
            )
        return filled

    def fact(self, value: object) -> int | str:
        """Return what a fact must be: a number, a word, or the bytes of a size in braces. Raises as ``fill`` does."""
        if isinstance(value, int):
            return value
        text = self.fill(str(value))
        return parse_size(text) if _PLACEHOLDER.fullmatch(str(value)) else text


def named_sizes(mmu: Mmu, features: frozenset[str]) -> dict[str, int]:
    """Return the page sizes of a machine by what they are; a CPU without huge pages has those of its architecture."""
    sizes = mmu.sizes(features) or tuple(mmu.hugetlb)
    named = {"default": mmu.default}
    gigantic = [size for size in sizes if mmu.is_gigantic(size) and size <= GIB]
    if gigantic:
        named["large"] = max(gigantic)
    others = [size for size in sizes if size != mmu.default and not mmu.is_gigantic(size)]
    if others:
        named["other"] = others[0]
    return named


_TEXTS = {"type": "array", "items": {"type": "string"}}
_AMOUNTS = {
    "type": "object",
    "propertyNames": {"enum": list(SIZE_NAMES)},
    "additionalProperties": {"type": ["string", "integer"]},
}
#: what every case has: what is given to the kernel, and what the source says must come of it
_PROPERTIES: Mapping[str, object] = {
    "name": {"type": "string", "pattern": "^[a-z0-9-]+$"},
    "words": {"type": "string"},
    "source": {"type": "string"},
    "memory": {"type": "string"},
    "pools": _AMOUNTS,
    "nodes": {"type": "object", "patternProperties": {"^[0-9]+$": _AMOUNTS}, "additionalProperties": False},
    "facts": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
    "log": _TEXTS,
}
_PROBE_PROPERTIES = {
    "cpus": {"type": "integer", "minimum": 1},
    "architectures": _TEXTS,
    "cpu": {"type": "string"},
}


@dataclass(frozen=True)
class BootCase:
    """One boot to judge. ``facts`` and ``log`` are what the source says in so many words, besides the model."""

    name: str
    architecture: str
    cpu: str
    words: str
    memory: tuple[int, ...]
    cpus: int = 1
    source: str = ""
    facts: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    log: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The machine that cases are for: a board's architecture and CPU, and the page sizes that these make."""

    architecture: str
    cpu: str
    mmu: Mmu
    features: frozenset[str]
    #: huge page parameters that the kernel under test takes
    parameters: frozenset[str] = frozenset(PARAMETERS)


def load_group(group: str, target: Target) -> list[BootCase]:
    """Return the cases of ``group`` that apply to ``target``.

    Raises InputError for a group that is not there or a file that is not of the form above.
    """
    choose_groups((group,))
    return parse_cases(_read_group(group), group, target)


def case_names() -> list[str]:
    """Return the names of the cases of all groups, whatever machine they are for: ``/order/size-twice``."""
    return [
        f"/{group}/{entry['name']}"
        for group in choose_groups(())
        for entry in parse_entries(_read_group(group), group, _PROBE_PROPERTIES)
    ]


def _read_group(group: str) -> str:
    return (resources.files(__package__) / "cases" / f"{group}.yaml").read_text(encoding="utf-8")


def parse_cases(text: str, group: str, target: Target) -> list[BootCase]:
    """Return the cases in YAML ``text`` that apply to ``target``; raises InputError for text of another form."""
    amounts = Amounts(named_sizes(target.mmu, target.features))
    cases = []
    for entry in parse_entries(text, group, _PROBE_PROPERTIES):
        if target.architecture not in entry.get("architectures", [target.architecture]):
            continue
        if target.cpu != entry.get("cpu", target.cpu):
            continue
        try:
            case = make_case(entry, group, target, amounts)
        except NotApplicable:
            continue
        # what the documents say of pools is for machines that have any; the model knows the others
        cases.append(case if target.mmu.sizes(target.features) else replace(case, facts={}, log=()))
    return cases


def parse_entries(text: str, group: str, properties: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the entries in YAML ``text``, which have what every case has and ``properties`` (JSON Schema).

    Raises InputError for text of another form.
    """
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - one boot by hand reads no cases

    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"cases {group}.yaml: no YAML: {str(error).splitlines()[0]}") from error
    schema = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "words", "source"],
            "additionalProperties": False,
            "properties": {**_PROPERTIES, **properties},
        },
    }
    problem = next(iter(Draft202012Validator(schema).iter_errors(entries)), None)
    if problem is not None:
        raise InputError(f"cases {group}.yaml: {problem.json_path}: {problem.message}")
    found: list[dict[str, Any]] = entries
    return found


def make_case(entry: Mapping[str, Any], group: str, target: Target, amounts: Amounts) -> BootCase:
    """Return the case that ``entry`` is on ``target``. Raises NotApplicable where that has no such page size."""
    facts = _pool_facts(entry.get("pools", {}), amounts, None)
    for node, pools in entry.get("nodes", {}).items():
        facts |= _pool_facts(pools, amounts, int(node))
    facts |= {subject: amounts.fact(value) for subject, value in entry.get("facts", {}).items()}
    return BootCase(
        name=f"/{group}/{entry['name']}",
        architecture=target.architecture,
        cpu=target.cpu,
        words=amounts.fill(entry["words"]),
        memory=parse_memory(entry.get("memory", "2G")),
        cpus=entry.get("cpus", 1),
        source=entry["source"],
        facts=facts,
        log=tuple(map(amounts.fill, entry.get("log", []))),
    )


def _pool_facts(pools: Mapping[str, object], amounts: Amounts, node: int | None) -> dict[str, int | str]:
    """Return the page counts of pools that are given as amounts by the name of their size."""
    return {
        pool_subject(amounts.size(name), "nr_hugepages", node): amounts.pages(str(amount), name)
        for name, amount in pools.items()
    }
