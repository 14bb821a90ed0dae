"""Imports point one way, as docs/architecture.md says: between rooms, and between the modules of one room."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBS = ROOT / "libs"
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("hugepage_qa", "hugepage_gate")

MODULES = {
    ".".join(path.relative_to(LIBS).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in (LIBS / package).rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """Return the modules of ours that the module in ``path`` imports anywhere, in a function or for its types, too."""
    found = set()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(MODULES)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in ``node``: an import is one, and is in no expression, of which there are many more."""
    for kind in ("body", "handlers", "orelse", "finalbody", "cases"):
        for inner in getattr(node, kind, ()):
            yield inner
            yield from _statements(inner)


@cache
def imports() -> dict[str, set[str]]:
    """Return the modules of ours that each of them imports."""
    return {name: imported(path) - {name} for name, path in MODULES.items()}


def room(module: str) -> str:
    """Return the room of ``module``: a package below hugepage_qa, hugepage_gate, or the name of a file beside them."""
    package, _, rest = module.partition(".")
    return package if package != "hugepage_qa" or not rest else rest.partition(".")[0]


def rooms_of_the_page() -> list[set[str]]:
    """Return the floors of the list in the page, lowest first; rooms of one floor do not import each other."""
    (block,) = re.findall(r"```text\n(errors:.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [set(line.partition(":")[0].split()) for line in block.splitlines()]


def arrows() -> Iterator[tuple[str, str, str, str]]:
    """Yield the rooms and the modules of each import from one room to another."""
    for module, others in imports().items():
        for other in others:
            if room(module) != room(other):
                yield room(module), room(other), module, other


def test_the_page_names_every_room() -> None:
    there = {room(module) for module in MODULES} - {"hugepage_qa"}
    floors = rooms_of_the_page()
    assert set().union(*floors) == there
    assert sum(map(len, floors)) == len(there)


def test_no_import_goes_back_up() -> None:
    floor = {name: number for number, names in enumerate(rooms_of_the_page()) for name in names}
    wrong = [
        f"{module} imports {other}"
        for here, there, module, other in arrows()
        if here in floor and there in floor and floor[there] >= floor[here]
    ]
    assert wrong == []


def test_no_circle_of_modules() -> None:
    # raises CycleError, which names the circle
    assert len(list(TopologicalSorter(imports()).static_order())) == len(MODULES)


def test_the_gate_knows_nothing_of_huge_pages() -> None:
    ours = {other for here, _, _, other in arrows() if here == "hugepage_gate"}
    assert ours == {f"hugepage_qa.{name}" for name in ("durable", "errors", "schema", "sizes")}


def test_no_two_files_have_one_name() -> None:
    names = [path.name for path in MODULES.values() if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))
