"""Every case has an address of its own in the documentation."""

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, anchor


def test_reboots_are_there(tests: list[CataloguedTest]) -> None:
    assert sum(entry.name.startswith("reboot/") for test in tests for entry in test.entries) > 1


def test_no_two_cases_have_one_address(tests: list[CataloguedTest]) -> None:
    names = {(test.area, entry.name) for test in tests for entry in test.entries}
    assert len({(area, anchor(name)) for area, name in names}) == len(names)


def test_a_case_is_on_one_page(tests: list[CataloguedTest]) -> None:
    pages: dict[str, set[str]] = {}
    for test in tests:
        for entry in test.entries:
            pages.setdefault(entry.name, set()).add(test.area)
    assert [name for name, areas in pages.items() if len(areas) > 1] == []
