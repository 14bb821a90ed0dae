"""The catalogue as Markdown, and what of it is not good enough to be printed."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, Entry
from hugepage_qa.catalogue.references import References


def problems(tests: Iterable[CataloguedTest], references: References) -> Iterator[str]:
    """Yield one line for each case without a rule, or with a source that leads nowhere."""
    for test in tests:
        if not test.summary or not test.description:
            yield f"{test.name}: expected a summary and a description in its metadata"
        for entry in test.entries:
            where = f"{test.name}: case {entry.name}"
            if not entry.statement.strip():
                yield f"{where}: expected a statement of what it asserts"
            if not entry.source.strip():
                yield f"{where}: expected the source of its rule"
                continue
            yield from (f"{where}: source {entry.source!r}: {problem}" for problem in references.problems(entry.source))


def render_pages(tests: Sequence[CataloguedTest]) -> Mapping[str, str]:
    """Return file name -> Markdown: one page for each area, and an index of them."""
    areas: dict[str, list[CataloguedTest]] = defaultdict(list)
    for test in tests:
        areas[test.area].append(test)
    pages = {f"{area}.md": _page(area, found) for area, found in sorted(areas.items())}
    pages["index.md"] = _index(areas)
    return pages


def _index(areas: Mapping[str, Sequence[CataloguedTest]]) -> str:
    total = sum(_count(found) for found in areas.values())
    rows = [f"| [{area}]({area}.md) | {len(areas[area])} | {_count(areas[area])} |" for area in sorted(areas)]
    lines = [
        "# All cases",
        "",
        f"{total} cases, most of them for every page size of the machine. These pages are made from the metadata of the"
        " tests and from the code: what is not here is not tested.",
        "",
        "| area | tests | cases |",
        "|---|---|---|",
        *rows,
        "",
        "```{toctree}",
        ":hidden:",
        *sorted(areas),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _count(tests: Iterable[CataloguedTest]) -> int:
    """Return the number of different cases: several tests can run the same ones, on other machines."""
    entries = [test.entries for test in tests]
    # one without entries is a case itself
    return sum(len(each) for each in set(entries)) + entries.count(())


def _page(area: str, tests: Sequence[CataloguedTest]) -> str:
    lines = [f"# {area}"]
    shown: dict[tuple[Entry, ...], str] = {}
    for test in tests:
        lines += ["", f"## {test.name}", "", f"**{without_markup(test.summary)}** (at most {test.duration})"]
        lines += ["", without_markup(test.description)]
        if test.entries in shown:
            lines += ["", f"The cases are those of {shown[test.entries]}."]
        elif test.entries:
            shown[test.entries] = test.name
            lines += [line for entry in test.entries for line in _description(entry)]
    return "\n".join(lines) + "\n"


def _description(entry: Entry) -> Iterator[str]:
    yield from ("", f"```{{qa:case}} {entry.name}", without_markup(entry.statement))
    yield from ("", f"*Source:* {_source(entry.source)}")
    if entry.where:
        yield from ("", f"*Only:* {without_markup(entry.where)}")
    yield "```"


def _source(source: str) -> str:
    """Return ``source`` with the kernel's documents as links."""
    return "".join(map(_linked, re.split(r"(Documentation/[\w./-]+\.rst)", source)))


def _linked(part: str) -> str:
    page = part.removeprefix("Documentation/").removesuffix(".rst")
    return without_markup(part) if page == part else f"[{without_markup(part)}](https://docs.kernel.org/{page}.html)"


def without_markup(text: str) -> str:
    """Return ``text`` with what Markdown would take for markup made harmless, but for `code`."""
    parts = re.split("(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"[\\*_\[\]|<{}~$]", r"\\\g<0>", part) for part in parts)
