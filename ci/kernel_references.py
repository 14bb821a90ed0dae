"""Add the sources that cases name to the list of what exists, as far as a kernel tree really has them.

    python ci/kernel_references.py --tree linux [--tree older] [--manual pages.txt]

A tree is the kernel's source. ``pages.txt`` has the manual pages that exist, one a line, such as mmap.2. What no tree
has is printed and not added: then the source in the case is wrong, or the tree is of another version.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from hugepage_qa.cases.result import ExitCode
from hugepage_qa.catalogue.catalogued_tests import catalogued_tests
from hugepage_qa.catalogue.references import References, named_in
from hugepage_qa.commands.argument_parser import Parser
from hugepage_qa.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "libs" / "hugepage_qa" / "catalogue" / "references.yaml"
HEAD = """\
# What the sources of cases may name; ci/kernel_references.py adds what is in a kernel tree.
# ANCK is the kernel of Alibaba Cloud Linux, where hugetext is.
"""


def main() -> int:
    """Return 0 when all is known or was found, 1 when something exists nowhere, 3 for wrong input."""
    parser = Parser(description="List what the sources of cases name and a kernel tree has.")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="source of a kernel; several in turn")
    parser.add_argument("--manual", type=Path, help="file with the names of manual pages")
    options = parser.parse_args()
    try:
        trees = [_checked(tree) for tree in options.tree]
        sources = {entry.source for test in catalogued_tests(ROOT) for entry in test.entries}
    except InputError as error:
        print(f"references: {error}", file=sys.stderr)
        return ExitCode.BROKEN
    manual = _pages(options.manual) if options.manual else frozenset()
    known = References.known()
    kernel = {file: set(functions) for file, functions in known.kernel.items()}
    pages = set(known.manual)
    for source in sources:
        named = named_in(source)
        pages |= named.manual & manual
        for file, functions in named.files.items():
            _add(kernel, file, functions, trees)
    listed = {
        "kernel": {file: sorted(kernel[file]) for file in sorted(kernel)},
        "manual": sorted(pages),
        "documents": list(known.documents),
    }
    LIST.write_text(HEAD + yaml.safe_dump(listed, sort_keys=False, width=120), encoding="utf-8")
    missing = list(_missing(sources))
    print("\n".join(missing) or f"{len(sources)} sources, all known")
    return ExitCode.BAD if missing else ExitCode.GOOD


def _add(kernel: dict[str, set[str]], file: str, functions: frozenset[str], trees: list[Path]) -> None:
    """Add ``file``, which can be a pattern, and those of ``functions`` that one of ``trees`` has."""
    for tree in trees if file else ():
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in tree.glob(file) if path.is_file()]
        if texts:
            present = {name for name in functions if any(re.search(rf"\b{name}\b", text) for text in texts)}
            kernel.setdefault(file, set()).update(present)


def _missing(sources: set[str]) -> Iterator[str]:
    references = References.known()
    for source in sorted(sources):
        yield from (f"{source}: {problem}" for problem in references.problems(source))


def _checked(tree: Path) -> Path:
    if not (tree / "mm" / "hugetlb.c").is_file():
        raise InputError(f"--tree {tree}: expected the source of a kernel (no mm/hugetlb.c)")
    return tree


def _pages(file: Path) -> frozenset[str]:
    names = file.read_text(encoding="utf-8").split()
    return frozenset(f"{name}({section})" for name, _dot, section in (one.rpartition(".") for one in names))


if __name__ == "__main__":
    sys.exit(main())
