"""The tests that tmt would discover, with the cases in them: read from metadata, code and YAML."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import fmf
import yaml

from hugepage_qa.cases.area_files import read_areas
from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.cases.case import Case, Sizes
from hugepage_qa.errors import InputError


@dataclass(frozen=True)
class Entry:
    """One case: its name, what it asserts, the source of that rule, and where it runs."""

    name: str
    statement: str
    source: str
    where: str = ""


def anchor(case: str) -> str:
    """Return the anchor of ``case`` in the page of its area."""
    return case.replace("/", "-")


@dataclass(frozen=True)
class CataloguedTest:
    """A test of fmf. Without ``entries`` it is one case itself, and its description says what it asserts."""

    name: str
    summary: str
    description: str
    duration: str
    entries: tuple[Entry, ...]

    @property
    def area(self) -> str:
        """The folder below tests/ that it lies in."""
        return self.name.split("/")[2]


_RUNNER = ("hugepage-qa", "run")


def catalogued_tests(root: Path) -> Iterator[CataloguedTest]:
    """Yield the tests below ``root``, a root of fmf. Raises InputError for a test that cannot be read."""
    try:
        nodes = list(fmf.Tree(str(root)).prune(keys=["test"]))
    except fmf.utils.GeneralError as error:
        raise InputError(f"{root}: {error}") from error
    for node in nodes:
        data: Mapping[str, Any] = node.data
        folder = root / node.name.strip("/")
        while not folder.is_dir():
            folder = folder.parent
        yield CataloguedTest(
            name=node.name,
            summary=str(data.get("summary", "")).strip(),
            description=str(data.get("description", "")).strip(),
            duration=str(data.get("duration", "5m")),
            entries=tuple(_entries(shlex.split(str(data["test"])), folder, node.name)),
        )


def _entries(words: list[str], folder: Path, name: str) -> Iterator[Entry]:
    if "reboot-cases" in words:
        yield from reboot_cases()
    elif tuple(words[1:3]) == _RUNNER:
        for word in words[3:]:
            file, _colon, method = word.partition(":")
            if not file.endswith(".py"):
                continue
            if not (folder / file).is_file():
                raise InputError(f"{name}: runs {file}, which is not in {folder}")
            yield from named_boot_cases() if method.endswith(".test_named") else live_cases(folder / file)


def live_cases(file: Path) -> Iterator[Entry]:
    """Yield the cases of all areas in ``file``, which is imported. Raises InputError when it cannot be."""
    for area in read_areas(file):
        for case in area.cases:
            yield Entry(f"{area.name}/{case.name}", case.rule.statement, case.rule.source, _where(case))


def _where(case: Case) -> str:
    # what every case does needs no words
    words = [] if case.sizes is Sizes.EACH else [case.sizes.value]
    if case.nodes > 1:
        words.append(f"{case.nodes} NUMA nodes")
    if case.rule.since:
        words.append(f"since Linux {case.rule.since}")
    if case.rule.until:
        words.append(f"before Linux {case.rule.until}")
    return ", ".join(words)


def named_boot_cases() -> Iterator[Entry]:
    """Yield the cases of all groups of boot parameters."""
    for group in groups():
        yield from _written("hugepage_qa.cases.boot", f"cases/{group}.yaml", f"{group}/")


def reboot_cases() -> Iterator[Entry]:
    """Yield the cases for which the machine under test is rebooted."""
    yield from _written("hugepage_qa.cases.reboot", "cases.yaml", "reboot/")


def _written(package: str, file: str, prefix: str) -> Iterator[Entry]:
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    for case in yaml.safe_load(text):
        where = ", ".join(case.get("architectures", []))
        yield Entry(f"{prefix}{case['name']}", _expectation(case), case.get("source", ""), where)


def _expectation(case: Mapping[str, Any]) -> str:
    """Return what the case says in so many words; the model is asked in any case."""
    parts = [f"{title} {_facts(case[key])}" for key, title in _EXPECTED.items() if case.get(key)]
    told = "; ".join(parts) or "what the model predicts"
    return f"`{case['words'] or 'no words'}` gives {told}"


_EXPECTED = {"pools": "pools of", "nodes": "on nodes", "facts": "facts", "log": "in the log", "persisted": "sysctl.d"}


def _facts(facts: Any) -> str:
    if isinstance(facts, Mapping):
        return ", ".join(f"{key} {_facts(value)}" for key, value in facts.items())
    return ", ".join(map(str, facts)) if isinstance(facts, list) else str(facts)
