"""Where the documentation tells of a case: an address that reports can link to."""

import re
from collections.abc import Iterable, Mapping

from hugepage_qa.catalogue.entry import CataloguedTest


def anchor(case: str) -> str:
    """Return the anchor of ``case`` in its page."""
    return case.replace("/", "-")


def page_addresses(tests: Iterable[CataloguedTest]) -> dict[str, str]:
    """Return name of a case -> its address, a URL relative to the first page of the documentation."""
    return {entry.name: f"cases/{test.area}.html#{anchor(entry.name)}" for test in tests for entry in test.entries}


def page_address(result: str, addresses: Mapping[str, str]) -> str | None:
    """Return the address of the case that ``result`` is a result of, None for one that is not in the catalogue.

    ``result`` is the name of a case and what tells its results apart: ``/pool/grow/2M``, ``/order/two-pairs@qemu64``.
    """
    parts = re.split("(?=[/@])", result.strip("/"))
    names = ("".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((addresses[name] for name in names if name in addresses), None)
