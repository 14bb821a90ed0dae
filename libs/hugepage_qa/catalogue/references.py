"""The source of a rule, held against what is known to exist: a reference to nothing is worse than none.

``references.yaml`` lists the files of the kernel with their functions, the manual pages and the other documents that
sources name. ``ci/kernel_references.py`` adds to it what a kernel tree really has.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

_FILE = re.compile(r"(?<![\w./])(?:Documentation|arch|drivers|fs|include|io_uring|ipc|kernel|lib|mm|virt)/[\w./*-]*\w")
_FUNCTION = re.compile(r"\b(\w+)\(\)")
_MANUAL = re.compile(r"\b([\w.]+\([1-8]\))")


@dataclass(frozen=True)
class Named:
    """What a source names: files of the kernel with functions in them, and pages of the manual."""

    files: Mapping[str, frozenset[str]]
    manual: frozenset[str]


@dataclass(frozen=True)
class References:
    """What is known to exist."""

    kernel: Mapping[str, frozenset[str]]
    manual: frozenset[str]
    documents: tuple[str, ...]

    @classmethod
    def known(cls) -> "References":
        """Return what ``references.yaml`` lists."""
        text = resources.files(__package__).joinpath("references.yaml").read_text(encoding="utf-8")
        listed: dict[str, Any] = yaml.safe_load(text)
        return cls(
            {file: frozenset(functions) for file, functions in listed["kernel"].items()},
            frozenset(listed["manual"]),
            tuple(listed["documents"]),
        )

    def problems(self, source: str) -> Iterator[str]:
        """Yield what of ``source`` is known nowhere; a source that names nothing at all is a problem, too."""
        named = named_in(source)
        told = any(one in source for one in self.documents)
        functions = frozenset().union(*self.kernel.values())
        for file, wanted in named.files.items():
            if file and file not in self.kernel:
                yield f"no {file} in the kernel"
            # functions that stand without a file can be those of another program, which a document is known of
            if file or not told:
                # a function may have moved between the files that a source names
                yield from (f"no {name}() in {file or 'the kernel'}" for name in sorted(wanted - functions))
        yield from (f"no manual page {page}" for page in sorted(named.manual - self.manual))
        if not (named.files or named.manual or told):
            yield "names no document that is known"


def named_in(source: str) -> Named:
    """Return what ``source`` names. Functions belong to the last file before them; those before any stand under ''."""
    files: dict[str, set[str]] = {}
    last = ""
    for match in re.finditer(f"{_FILE.pattern}|{_FUNCTION.pattern}", source):
        if match[1]:
            files.setdefault(last, set()).add(match[1])
        else:
            last = match[0]
            files.setdefault(last, set())
    return Named(
        {file: frozenset(functions) for file, functions in files.items() if file or functions},
        frozenset(_MANUAL.findall(source)),
    )
