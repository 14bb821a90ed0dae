"""Which pages KVM has to map: made-up memory, worked out by hand from the rules of the kernel."""

import pytest

from hugepage_qa.oracle.kvm_mapping import (
    GivenMemory,
    mapped_after_execution,
    mapped_by_kvm,
    mapped_with_dirty_log,
    split_for_execution,
)
from hugepage_qa.sizes import GIB, KIB, MIB

K4, M2, G1 = 4 * KIB, 2 * MIB, GIB


@pytest.mark.parametrize(
    ("memory", "largest", "pages"),
    [
        # aligned for both
        (GivenMemory(G1, 6 * G1, 4 * M2, M2), G1, {M2: 4}),
        (GivenMemory(G1, 6 * G1, 2 * G1, G1), G1, {G1: 2}),
        # Intel without ept_1gb
        (GivenMemory(G1, 6 * G1, 2 * G1, G1), M2, {M2: 1024}),
        # ordinary pages of the process
        (GivenMemory(G1, 6 * G1, M2, K4), G1, {K4: 512}),
        # the guest has it shifted by a base page, and by 2M
        (GivenMemory(G1 + K4, 6 * G1, M2, M2), G1, {K4: 512}),
        (GivenMemory(G1 + M2, 6 * G1, G1, G1), G1, {M2: 512}),
        # both have it shifted: what lies whole in it is whole
        (GivenMemory(G1 + MIB, 6 * G1 + MIB, 2 * M2, M2), G1, {K4: 512, M2: 1}),
        (GivenMemory(G1 + 512 * MIB, 6 * G1 + 512 * MIB, 2 * G1, G1), G1, {M2: 512, G1: 1}),
    ],
)
def test_pages_are_whole_where_they_can_be(memory: GivenMemory, largest: int, pages: dict[int, int]) -> None:
    assert mapped_by_kvm(memory, largest) == pages


def test_each_base_page_is_mapped_while_writes_are_logged() -> None:
    assert mapped_with_dirty_log(GivenMemory(G1, 6 * G1, 3 * M2, M2)) == {K4: 1536}


@pytest.mark.parametrize(("page", "pages", "splits"), [(M2, {M2: 1, K4: 512}, 1), (G1, {G1: 1, M2: 511, K4: 512}, 2)])
def test_a_page_with_executed_code_is_split_down_to_base_pages(page: int, pages: dict[int, int], splits: int) -> None:
    memory = GivenMemory(G1, 6 * G1, 2 * page, page)
    assert mapped_after_execution(memory, G1) == pages
    assert split_for_execution(memory, G1) == splits
