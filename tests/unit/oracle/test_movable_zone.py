"""How much memory kernelcore= and movablecore= keep for what can be moved, on machines whose zones are known."""

from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.boot.movable_zone import SUBJECT
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.prediction import Between, Exactly, Expected, Prediction
from hugepage_qa.sizes import MIB

#: the largest block of the buddy allocator
BLOCK = 4 * MIB


def predicted(make_machine: MakeMachine, words: str, memory: str = "1G,1G", architecture: str = "x86_64") -> Prediction:
    """Return what a machine must show on which the kernel counts exactly its ``memory``."""
    machine = make_machine(architecture, memory)
    nodes = tuple(replace(node, present=sum(span.end - span.start for span in node.spans)) for node in machine.nodes)
    return predict(words, replace(machine, nodes=nodes))


def movable(prediction: Prediction) -> Expected | None:
    """Return what is expected of the movable memory, None where nothing is."""
    return next((one.expected for one in prediction.expectations if one.subject == SUBJECT), None)


@pytest.mark.parametrize(
    ("words", "amount"),
    [
        ("kernelcore=1280M", 768 * MIB),
        ("movablecore=512M", 512 * MIB),
        ("movablecore=511M", 512 * MIB),
        ("kernelcore=1280M movablecore=1G", 768 * MIB),
        ("kernelcore=1G movablecore=512M", 512 * MIB),
        ("kernelcore=75% movablecore=50%", 512 * MIB),
        ("movablecore=1G movablecore=256M", 256 * MIB),
        ("kernelcore=0x4b%", 512 * MIB),
        ("kernelcore=01400M", 1280 * MIB),
        ("kernelcore=1280M kernelcore", 768 * MIB),
    ],
)
def test_the_larger_kernelcore_counts(make_machine: MakeMachine, words: str, amount: int) -> None:
    found = movable(predicted(make_machine, words))
    assert found == Between(amount - 2 * BLOCK, amount + BLOCK)


@pytest.mark.parametrize(
    "words",
    ["kernelcore=2G", "kernelcore=1G kernelcore=", "kernelcore=4G movablecore=512M", "kernelcore=0", "movablecore=0"],
)
def test_no_memory_is_movable(make_machine: MakeMachine, words: str) -> None:
    assert movable(predicted(make_machine, words)) == Exactly(0)


def test_all_that_is_asked_for_and_more_is_movable(make_machine: MakeMachine) -> None:
    # the kernel keeps nothing for itself then, and takes it for kernelcore= that was not given
    assert movable(predicted(make_machine, "movablecore=4G")) == Exactly(0)


@pytest.mark.parametrize(("architecture", "memory"), [("x86_64", "4G,4G"), ("s390x", "4G")])
def test_what_lies_in_lower_zones_is_not_movable(make_machine: MakeMachine, architecture: str, memory: str) -> None:
    found = movable(predicted(make_machine, "kernelcore=1G", memory, architecture))
    assert isinstance(found, Between)
    assert found.low == 0


@pytest.mark.parametrize("words", ["kernelcore=mirror movablecore=1G", "movable_node movablecore=1G"])
def test_what_firmware_tells_is_left_open(make_machine: MakeMachine, words: str) -> None:
    prediction = predicted(make_machine, words)
    assert movable(prediction) is None
    assert SUBJECT in [one.subject for one in prediction.unjudged]


def test_without_them_nothing_is_expected(make_machine: MakeMachine) -> None:
    assert movable(predicted(make_machine, "hugepages=4 kernelcore")) is None
