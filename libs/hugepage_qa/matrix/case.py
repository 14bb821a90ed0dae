"""Named cases: a command line, a machine to boot it on, and what the kernel's documents say of it.

Cases are YAML files beside this module, one file a group. They name page sizes by what they are on the machine and
speak in bytes, so that one case serves every architecture that has these sizes:

    {default}  the architecture's default size       {large}  its largest gigantic size up to 1 GiB
    {other}    a further size that is not gigantic   {64M/default}  the number of such pages in 64 MiB
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

import yaml
from jsonschema import Draft202012Validator

from hugepage_qa.errors import InputError
from hugepage_qa.model.architecture import Mmu
from hugepage_qa.model.prediction import pool_subject
from hugepage_qa.model.unknown import PARAMETERS
from hugepage_qa.sizes import GIB, format_size, parse_memory, parse_size

_PLACEHOLDER = re.compile(r"\{(?:(?P<bytes>[0-9]+[KMG]?)/)?(?P<size>default|large|other)\}")

_TEXTS = {"type": "array", "items": {"type": "string"}}
_AMOUNTS = {
    "type": "object",
    "propertyNames": {"enum": ["default", "large", "other"]},
    "additionalProperties": {"type": ["string", "integer"]},
}
_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "words", "source"],
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "pattern": "^[a-z0-9-]+$"},
            "words": {"type": "string"},
            "source": {"type": "string"},
            "memory": {"type": "string"},
            "cpus": {"type": "integer", "minimum": 1},
            "architectures": _TEXTS,
            "cpu": {"type": "string"},
            "pools": _AMOUNTS,
            "nodes": {"type": "object", "patternProperties": {"^[0-9]+$": _AMOUNTS}, "additionalProperties": False},
            "facts": {"type": "object", "additionalProperties": {"type": ["string", "integer"]}},
            "log": _TEXTS,
        },
    },
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


class _NotApplicableError(Exception):
    """The case names a page size that the machine does not have."""


@cache
def groups() -> tuple[str, ...]:
    """Return the names of the groups of named cases."""
    folder = resources.files(__package__) / "cases"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_group(group: str, target: Target) -> list[BootCase]:
    """Return the cases of ``group`` that apply to ``target``.

    Raises InputError for a group that is not there or a file that is not of the form above.
    """
    if group not in groups():
        raise InputError(f"group {group!r}: expected one of {', '.join(groups())}")
    path = resources.files(__package__) / "cases" / f"{group}.yaml"
    return parse_cases(path.read_text(encoding="utf-8"), group, target)


def parse_cases(text: str, group: str, target: Target) -> list[BootCase]:
    """Return the cases in YAML ``text`` that apply to ``target``; raises InputError for text of another form."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"cases {group}.yaml: no YAML: {str(error).splitlines()[0]}") from error
    problem = next(iter(Draft202012Validator(_SCHEMA).iter_errors(entries)), None)
    if problem is not None:
        raise InputError(f"cases {group}.yaml: {problem.json_path}: {problem.message}")
    sizes = _named_sizes(target.mmu, target.features)
    cases = []
    for entry in entries:
        if target.architecture not in entry.get("architectures", [target.architecture]):
            continue
        if target.cpu != entry.get("cpu", target.cpu):
            continue
        try:
            case = _case(entry, group, target, sizes)
        except _NotApplicableError:
            continue
        # what the documents say of pools is for machines that have any; the model knows the others
        cases.append(case if target.mmu.sizes(target.features) else replace(case, facts={}, log=()))
    return cases


def _named_sizes(mmu: Mmu, features: frozenset[str]) -> dict[str, int]:
    sizes = mmu.sizes(features)
    # a CPU without huge pages is asked for those that its architecture could have
    sizes = sizes or tuple(mmu.hugetlb)
    named = {"default": mmu.default}
    gigantic = [size for size in sizes if mmu.is_gigantic(size) and size <= GIB]
    if gigantic:
        named["large"] = max(gigantic)
    others = [size for size in sizes if size != mmu.default and not mmu.is_gigantic(size)]
    if others:
        named["other"] = others[0]
    return named


def _case(entry: Mapping[str, object], group: str, target: Target, sizes: Mapping[str, int]) -> BootCase:
    facts: dict[str, int | str] = {}
    facts |= _pool_facts(_mapping(entry, "pools"), sizes, None)
    for node, pools in _mapping(entry, "nodes").items():
        if isinstance(pools, dict):
            facts |= _pool_facts(pools, sizes, int(node))
    facts |= {subject: _fact(value, sizes) for subject, value in _mapping(entry, "facts").items()}
    cpus = entry.get("cpus", 1)
    log = entry.get("log", [])
    return BootCase(
        name=f"/{group}/{entry['name']}",
        architecture=target.architecture,
        cpu=target.cpu,
        words=_fill(str(entry["words"]), sizes),
        memory=parse_memory(str(entry.get("memory", "2G"))),
        cpus=cpus if isinstance(cpus, int) else 1,
        source=str(entry["source"]),
        facts=facts,
        log=tuple(_fill(line, sizes) for line in log) if isinstance(log, list) else (),
    )


def _mapping(entry: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = entry.get(key, {})
    return value if isinstance(value, dict) else {}


def _pool_facts(pools: Mapping[str, object], sizes: Mapping[str, int], node: int | None) -> dict[str, int | str]:
    """Return the page counts of pools that are given in bytes by the name of their size."""
    facts: dict[str, int | str] = {}
    for name, amount in pools.items():
        size = _size(name, sizes)
        facts[pool_subject(size, "nr_hugepages", node)] = parse_size(str(amount)) // size
    return facts


def _fact(value: object, sizes: Mapping[str, int]) -> int | str:
    if isinstance(value, int):
        return value
    text = _fill(str(value), sizes)
    return parse_size(text) if _PLACEHOLDER.fullmatch(str(value)) else text


def _fill(text: str, sizes: Mapping[str, int]) -> str:
    def value(match: re.Match[str]) -> str:
        size = _size(match["size"], sizes)
        if match["bytes"] is None:
            return format_size(size)
        return str(parse_size(match["bytes"]) // size)

    filled = _PLACEHOLDER.sub(value, text)
    if "{" in filled:
        raise InputError(f"case with {text!r}: expected {{default}}, {{large}}, {{other}} or {{64M/default}} in braces")
    return filled


def _size(name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise _NotApplicableError
    return sizes[name]
