"""The tests that tmt would discover, with the cases in them."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fmf

from hugepage_qa.catalogue.entry import CataloguedTest, Entry
from hugepage_qa.catalogue.live_cases import live_cases
from hugepage_qa.catalogue.written_cases import named_boot_cases, reboot_cases
from hugepage_qa.errors import InputError

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
