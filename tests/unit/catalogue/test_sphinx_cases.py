"""The documentation that Sphinx makes of the catalogue has each case at its address, and its search finds them."""

import json
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, Entry, anchor
from hugepage_qa.catalogue.pages import render_pages

ENTRY = Entry("pool/grow", "the pool of `hugepages=3` is the kernel's", "mm/hugetlb.c set_max_huge_pages()")
TEST = CataloguedTest("/tests/pool/resize", "Pools", "Resizes them.", "5m", (ENTRY,))
RANDOM = CataloguedTest("/tests/pool/random", "Pools", "At random.", "5m", ())
PEER = """\
peer: one
tests:
  grows_1: {checks: pools, cases: [pool/grow]}
  grows_2: {checks: pools, cases: [/tests/pool/random], weaker: by chance}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("html")
    (source / "cases").mkdir()
    (source / "index.md").write_text("# Start\n\n```{toctree}\ncases/index\npeers\n```\n", encoding="utf-8")
    (source / "peers.md").write_text("# Peers\n\n```{qa:coverage} peer.yaml\n```\n", encoding="utf-8")
    (source / "peer.yaml").write_text(PEER, encoding="utf-8")
    for name, text in render_pages([TEST, RANDOM]).items():
        (source / "cases" / name).write_text(text, encoding="utf-8")
    settings = {
        "extensions": ["myst_parser", "hugepage_qa.catalogue.sphinx_cases"],
        "html_theme": "basic",
        "myst_heading_anchors": 3,
        "nitpicky": True,
    }
    with (tmp_path_factory.mktemp("log") / "log").open("w") as log:
        application = Sphinx(
            source, None, output, output / ".doctrees", "html", settings, status=None, warning=log, warningiserror=True
        )
        application.build()
    return output


def test_a_case_is_at_its_address(built: Path) -> None:
    page = built / "cases" / "pool.html"
    assert f'id="{anchor("pool/grow")}"' in page.read_text(encoding="utf-8")


def test_the_search_knows_name_and_rule(built: Path) -> None:
    text = (built / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    (found,) = (entry for entries in index["objects"].values() for entry in entries)
    page, _type, _priority, place, name = found
    assert index["docnames"][page] == "cases/pool"
    assert place == "pool-grow"
    assert name == "pool/grow: the pool of hugepages=3 is the kernel\N{RIGHT SINGLE QUOTATION MARK}s"


def test_tests_of_other_suites_lead_to_cases(built: Path) -> None:
    page = (built / "peers.html").read_text(encoding="utf-8")
    assert f'href="cases/pool.html#{anchor("pool/grow")}"' in page
    assert 'href="cases/pool.html#tests-pool-random"' in page
    assert "by chance" in page
