"""Every case has an address of its own in the documentation, and its results lead to it."""

from pathlib import Path

import pytest

from hugepage_qa.catalogue.addresses import page_address, page_addresses
from hugepage_qa.catalogue.tests_of_fmf import catalogued_tests

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    return page_addresses(catalogued_tests(ROOT))


@pytest.mark.parametrize(
    ("result", "address"),
    [
        ("demote/demoted-page", "cases/pool.html#demote-demoted-page"),
        ("/demote/demoted-page", "cases/pool.html#demote-demoted-page"),
        ("/demote/demoted-page/1G", "cases/pool.html#demote-demoted-page"),
        ("/guest/refuse/qemu/one-page-short/2M", "cases/guest.html#guest-refuse-qemu-one-page-short"),
        ("/counts/zero@qemu64", "cases/boot.html#counts-zero"),
        ("/text/values/permissions", "cases/text.html#text-values-permissions"),
        ("/reboot/hugetext-padding", None),
        ("/random-7/144", None),
        ("/demote", None),
        ("/", None),
    ],
)
def test_results_lead_to_their_case(addresses: dict[str, str], result: str, address: str | None) -> None:
    assert page_address(result, addresses) == address


def test_reboots_lead_to_their_cases(addresses: dict[str, str]) -> None:
    assert sum(name.startswith("reboot/") for name in addresses) > 1


def test_no_two_cases_have_one_address(addresses: dict[str, str]) -> None:
    assert len(set(addresses.values())) == len(addresses)


def test_a_case_is_on_one_page() -> None:
    pages: dict[str, set[str]] = {}
    for test in catalogued_tests(ROOT):
        for entry in test.entries:
            pages.setdefault(entry.name, set()).add(test.area)
    assert [name for name, areas in pages.items() if len(areas) > 1] == []
