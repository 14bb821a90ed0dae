"""Names of page sizes and amounts, on a machine with 4 GiB."""

import pytest

from hugepage_qa.cases.boot.boot_case import Amounts, NotApplicable
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

AMOUNTS = Amounts({"default": 2 * MIB, "large": GIB}, 4 * GIB)


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("hugepagesz={large} hugepages={1G/large}", "hugepagesz=1G hugepages=1"),
        ("hugepages={3/4/default}", "hugepages=1536"),
        ("hugepages=0:{1/3/default},1:{64M/default}", "hugepages=0:682,1:32"),
        ("hugepages={1/3/large}", "hugepages=1"),
        ("quiet", "quiet"),
    ],
)
def test_names_are_filled(text: str, filled: str) -> None:
    assert AMOUNTS.fill(text) == filled


@pytest.mark.parametrize("text", ["{huge}", "{1/0/default}", "{64X/default}", "{/default}", "{3/4}", "{default"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"expected {default}, {large}, {other} or {64M/default} in braces"):
        AMOUNTS.fill(text)


def test_a_size_that_the_machine_does_not_have() -> None:
    with pytest.raises(NotApplicable, match=r"^the machine has no other page size$"):
        AMOUNTS.fill("{other}")


def test_a_fraction_of_memory_that_is_not_known() -> None:
    with pytest.raises(InputError, match=r"^amount '1/2': expected bytes"):
        Amounts(AMOUNTS.sizes).fill("{1/2/default}")


@pytest.mark.parametrize(("value", "fact"), [(5, 5), ("always", "always"), ("{large}", GIB), ("x{large}", "x1G")])
def test_facts(value: object, fact: int | str) -> None:
    assert AMOUNTS.fact(value) == fact
