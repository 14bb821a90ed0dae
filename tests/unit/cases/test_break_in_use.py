"""A base page that moves before it breaks: another one is broken."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases import broken_memory
from hugepage_qa.cases.broken_memory import break_in_use
from hugepage_qa.cases.mapped_memory import PRESENT
from hugepage_qa.machine.host import CannotRun

GONE, ELSEWHERE = 0, PRESENT | 99


def broken(monkeypatch: pytest.MonkeyPatch, entries: list[int], *, by_address: bool = False) -> tuple[int, list[int]]:
    """Return the frame that broke at last, and which memories were ended, and their frames mended.

    ``entries`` are seen after each break.
    """
    ended, mended, left = list[int](), list[int](), iter(entries)
    numbers: Iterator[int] = iter(range(1, 1 + len(entries)))

    def make() -> SimpleNamespace:
        number = next(numbers)
        return SimpleNamespace(
            address=0,
            length=8192,
            frame=lambda _place: number,
            pagemap=lambda _addresses: [next(left)],
            actor=SimpleNamespace(end=lambda: ended.append(number)),
        )

    monkeypatch.setattr(broken_memory, "hard_offline", lambda _live, _frame: None)
    monkeypatch.setattr(broken_memory, "mend", lambda _live, frame: mended.append(frame))
    live = SimpleNamespace(host=SimpleNamespace(has_others=False, skip_kernel_log=lambda: None))
    tell = (lambda _memory: None) if by_address else None
    _memory, frame, _seen = break_in_use(cast(Any, live), cast(Any, make), 0, lambda: None, cast(Any, tell))
    assert mended == ended
    return frame, ended


def test_what_is_gone_is_what_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, [GONE, GONE]) == (1, [])
    # it stays mapped where the kernel does not take it away, and that is judged
    assert broken(monkeypatch, [PRESENT | 1, GONE]) == (1, [])


def test_what_has_moved_is_left_and_another_one_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, [ELSEWHERE, ELSEWHERE, GONE]) == (3, [1, 2])


def test_what_always_moves_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotRun, match="moves the base page"):
        broken(monkeypatch, [ELSEWHERE] * 9)


def test_what_is_told_by_its_address_breaks_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, [ELSEWHERE] * 2, by_address=True) == (1, [])
