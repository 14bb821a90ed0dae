"""How node masks and pages are passed to the kernel."""

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hugepage_qa.cases import memory_policy
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.memory_policy import Mode
from hugepage_qa.kernel.uapi import UAPIS
from hugepage_qa.process.actor import Actor


class FakeLink:
    """Keeps the last request and answers that it went well."""

    pid = 1

    def __init__(self) -> None:
        self.words: list[str] = []

    def request(self, text: str) -> tuple[str, None]:
        self.words = text.split()
        return "ok 0", None

    def exit(self) -> None:
        """Nothing is to be ended."""

    def end(self) -> None:
        """Nothing is to be ended."""


@pytest.mark.parametrize(("architecture", "order"), [("x86_64", "<"), ("s390x", ">")])
@pytest.mark.parametrize(
    ("nodes", "words"),
    [([0], [1]), ([0, 1, 3], [0b1011]), ([63], [1 << 63, 0]), ([64], [0, 1]), ([], [0])],
)
def test_a_mask_has_a_bit_for_each_node_and_is_one_bit_longer_than_it_is(
    nodes: list[int], words: list[int], architecture: str, order: str
) -> None:
    link = FakeLink()
    memory_policy.set_policy(Actor(link, UAPIS[architecture]), Mode.BIND, nodes)
    mask = struct.pack(f"{order}{len(words)}Q", *words)
    assert link.words == ["call", "set_mempolicy", "2", f"x{mask.hex()}", str(64 * len(words) + 1)]


def test_both_masks_of_a_migration_have_the_same_length() -> None:
    link = FakeLink()
    memory_policy.migrate(Actor(link, UAPIS["x86_64"]), 0, 70)
    _call, name, pid, maximum, old, new = link.words
    assert (name, pid, maximum) == ("migrate_pages", "0", "129")
    assert (old, new) == (f"x{struct.pack('<QQ', 1, 0).hex()}", f"x{struct.pack('<QQ', 0, 1 << 6).hex()}")


@pytest.mark.parametrize(("architecture", "order"), [("x86_64", "<"), ("s390x", ">")])
def test_where_a_page_is_asked_without_moving_it(architecture: str, order: str) -> None:
    class Answers(FakeLink):
        def request(self, text: str) -> tuple[str, None]:
            super().request(text)
            address, status = struct.pack(f"{order}Q", 0x5000), struct.pack(f"{order}i", -14)
            return f"ok 0 {address.hex()} {status.hex()}", None

    link = Answers()
    actor = Actor(link, UAPIS[architecture])
    live = cast(Any, SimpleNamespace(kernel_version=None))
    assert memory_policy.node_of(Memory(live, actor, 0x4000, 2, 0x1000), 1) == -14
    assert link.words[1:4] == ["move_pages", "0", "1"]
    assert link.words[4] == f"x{struct.pack(f'{order}Q', 0x5000).hex()}"
    assert (link.words[5], link.words[7]) == ("0", "0")


def test_cpus_that_an_actor_runs_on_are_a_mask() -> None:
    link = FakeLink()
    memory_policy.run_on(Actor(link, UAPIS["x86_64"]), (0, 2))
    assert link.words == ["call", "sched_setaffinity", "0", "8", f"x{struct.pack('<Q', 0b101).hex()}"]
