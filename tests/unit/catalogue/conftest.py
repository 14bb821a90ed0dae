"""The tests of the suite: to read them takes seconds."""

from pathlib import Path

import pytest

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, catalogued_tests


@pytest.fixture(scope="session")
def tests() -> list[CataloguedTest]:
    return list(catalogued_tests(Path(__file__).resolve().parents[3]))
