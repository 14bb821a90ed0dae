"""Cases that are data: boot parameters for throwaway machines, and for reboots of the machine under test."""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import yaml

from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.catalogue.entry import Entry


def named_boot_cases() -> Iterator[Entry]:
    """Yield the cases of all groups of boot parameters."""
    for group in groups():
        yield from _entries("hugepage_qa.cases.boot", f"cases/{group}.yaml", f"{group}/")


def reboot_cases() -> Iterator[Entry]:
    """Yield the cases for which the machine under test is rebooted."""
    yield from _entries("hugepage_qa.cases.reboot", "cases.yaml", "reboot/")


def _entries(package: str, file: str, prefix: str) -> Iterator[Entry]:
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    for case in yaml.safe_load(text):
        where = ", ".join(case.get("architectures", []))
        yield Entry(f"{prefix}{case['name']}", _statement(case), case.get("source", ""), where)


def _statement(case: Mapping[str, Any]) -> str:
    """Return what the case says in so many words; the model is asked in any case."""
    parts = [f"{title} {_facts(case[key])}" for key, title in _EXPECTED.items() if case.get(key)]
    told = "; ".join(parts) or "what the model predicts"
    return f"`{case['words'] or 'no words'}` gives {told}"


_EXPECTED = {"pools": "pools of", "nodes": "on nodes", "facts": "facts", "log": "in the log", "persisted": "sysctl.d"}


def _facts(facts: Any) -> str:
    if isinstance(facts, Mapping):
        return ", ".join(f"{key} {_facts(value)}" for key, value in facts.items())
    return ", ".join(map(str, facts)) if isinstance(facts, list) else str(facts)
