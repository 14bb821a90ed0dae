"""Addresses that must be random: what is seen of them, and what is not."""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases.places import expect_random
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.sizes import MIB

PAGE, BITS, ALIGNMENT = 4096, 28, 2 * MIB
FILES = {"proc/sys/kernel/randomize_va_space": "2\n", "proc/sys/vm/mmap_rnd_bits": f"{BITS}\n"}


def differences(random_bits: int, files: dict[str, str] | None = None) -> list[str]:
    """Return what is told of mappings whose addresses have this many random bits."""
    found: list[str] = []
    drawn = Random(1)  # noqa: S311 - a test that is the same each time

    def expect(subject: str, expected: object, seen: object) -> None:
        if expected != seen:
            found.append(f"{subject}: {expected} {seen}")

    def place() -> SimpleNamespace:
        below = drawn.randrange(1 << random_bits) * PAGE
        return SimpleNamespace(address=(0x7FFF_0000_0000 - below) // ALIGNMENT * ALIGNMENT)

    host = SimpleNamespace(read=(FILES if files is None else files).get)
    live = SimpleNamespace(base_page=PAGE, host=host, expect=expect)
    actor = SimpleNamespace(exec=lambda: 0)
    expect_random(cast(Any, live), cast(Any, actor), cast(Any, place), ALIGNMENT)
    return found


def test_bits_that_are_random_are_as_many_as_the_kernel_says() -> None:
    assert differences(BITS) == []


@pytest.mark.parametrize("bits", [0, 9, 12, BITS - 1])
def test_an_address_with_fewer_is_a_difference(bits: int) -> None:
    assert len(differences(bits)) == 1


@pytest.mark.parametrize(
    "changed", [{"proc/sys/kernel/randomize_va_space": "0\n"}, {"proc/sys/vm/mmap_rnd_bits": "8\n"}]
)
def test_where_none_is_to_be_random_nothing_is_judged(changed: dict[str, str]) -> None:
    with pytest.raises(CannotRun):
        differences(0, FILES | changed)
    with pytest.raises(CannotRun):
        differences(0, {})
