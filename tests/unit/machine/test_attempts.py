"""What acts each time it looks has a few attempts, and not all the time that there is."""

import pytest
from tests.unit.cases.still_machine import StillMachine

from hugepage_qa.machine.host import Host


@pytest.mark.parametrize(("right_at", "seen"), [(1, 1), (3, 3), (4, 3)])
def test_a_kernel_that_is_right_now_and_then_has_three_attempts(right_at: int, seen: int) -> None:
    attempts = iter(range(1, 100))
    assert Host(StillMachine()).last_attempt(lambda: next(attempts), lambda number: number == right_at) == seen
    assert next(attempts) == seen + 1
