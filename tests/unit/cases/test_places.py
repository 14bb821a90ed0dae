"""Addresses that must be random, what is seen of them, and what is not; and places that no address space has."""

import errno
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases import places
from hugepage_qa.cases.places import expect_random, place_of_tables
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.process.actor import Refused
from hugepage_qa.sizes import GIB, MIB

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


def place(monkeypatch: pytest.MonkeyPatch, end: int, error: int = 0) -> int:
    """Return where four page tables of 512 GiB lie in an address space that ends at ``end``."""

    def mapped(pages: int, _actor: Any, *, noreserve: bool) -> SimpleNamespace:
        assert noreserve
        if error or pages * GIB > end:
            raise Refused(error or errno.ENOMEM, "mmap")
        return SimpleNamespace(address=end - pages * GIB, unmap=lambda: None)

    monkeypatch.setattr(places, "end_of_addresses", lambda _live, _actor: end)
    live = SimpleNamespace(size=GIB, map=mapped)
    return place_of_tables(cast(Any, live), cast(Any, None), 4 * TABLE, 2 * TABLE)


TABLE = 512 * GIB


def test_page_tables_lie_where_one_begins_and_all_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    end = 1 << 47
    found = place(monkeypatch, end - 5 * GIB)
    assert found % (2 * TABLE) == 0
    assert found + 4 * TABLE <= end - 5 * GIB


def test_an_address_space_of_one_table_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRun, match="addresses end at 0x8000000000: 3072 GiB"):
        place(monkeypatch, 1 << 39)


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EINVAL])
def test_one_with_room_that_refuses_it_is_told(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    with pytest.raises(Refused):
        place(monkeypatch, 1 << 47, error)
