"""A sentinel that leaves its range tells of a disturbed session."""

from dataclasses import replace

import numpy as np
from tests.unit.gate.documents import measured, sample_set

from hugepage_gate.block_summary import BlockSummary, summarise
from hugepage_gate.evidence import disturbed_blocks
from hugepage_gate.samples import Samples

BLOCK = summarise(sample_set(measured(1)).series[0], 0.01, {}, None).blocks[0]


def blocks(sentinels: Samples) -> list[BlockSummary]:
    return [replace(BLOCK, sentinel=float(np.exp(one)), session=str(place)) for place, one in enumerate(sentinels)]


def test_a_sentinel_is_judged_against_enough_others_only() -> None:
    usual = np.random.default_rng(1).normal(0, 0.01, 10)
    far = blocks(np.array([0.2]))
    assert disturbed_blocks(blocks(usual), far) == far
    assert disturbed_blocks(blocks(usual), blocks(np.array([0.005]))) == []
    assert disturbed_blocks(blocks(usual[:4]), far) == []
    assert disturbed_blocks(blocks(usual), [BLOCK]) == []


def test_a_sentinel_after_the_block_is_judged_like_the_one_before() -> None:
    usual = blocks(np.random.default_rng(1).normal(0, 0.01, 10))
    quiet, burst = (replace(usual[0], sentinel_after=float(np.exp(one))) for one in (0.005, 0.2))
    assert disturbed_blocks(usual, [quiet, burst]) == [burst]
