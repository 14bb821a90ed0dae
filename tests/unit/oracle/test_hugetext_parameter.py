"""hugetext= on the command line: what hugetext_enabled must show, and what the log must say."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.cases.boot.boot_case import Target, load_group
from hugepage_qa.oracle.architecture import find_mmu
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.compare import compare
from hugepage_qa.oracle.prediction import Exactly, Prediction
from hugepage_qa.sizes import KIB

PredictWith = Callable[..., Prediction]

FILE = "transparent_hugepage/hugetext_enabled"
BITS = {"hugetext": True, "hugetext_pad_threshold": True}
UNCLEAR = {"hugetext": True}
MESSAGE = "hugetext= cannot parse, ignored"


@pytest.fixture
def prediction_of(make_machine: MakeMachine) -> PredictWith:
    def predict_with(words: str, interfaces: dict[str, bool], memory: str = "4G") -> Prediction:
        machine = make_machine(version="5.10", memory=memory)
        return predict(words, replace(machine, config=None, unknown_words=(), interfaces=interfaces))

    return predict_with


def modes(prediction: Prediction) -> list[object]:
    expected = (one.expected for one in prediction.expectations if one.subject == FILE)
    return [one.value for one in expected if isinstance(one, Exactly)]


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("hugetext=0", 0),
        ("hugetext=1", 1),
        ("hugetext=2", 2),
        ("hugetext=3", 3),
        ("hugetext=0x3", 3),
        ("hugetext=3 hugetext=1", 1),
        ("hugetext=2 hugetext=4", 2),
        ("hugetext=2 hugetext", 2),
        ("transparent_hugepage=never hugetext=1", 1),
    ],
)
def test_the_last_mode_wins_and_too_large_ones_say_nothing(prediction_of: PredictWith, words: str, mode: int) -> None:
    prediction = prediction_of(words, BITS)
    assert modes(prediction) == [mode]
    assert MESSAGE not in [message.text for message in prediction.messages]


@pytest.mark.parametrize("value", ["abc", "", "-1", "1x"])
def test_what_is_no_number_is_warned_about_and_changes_nothing(prediction_of: PredictWith, value: str) -> None:
    prediction = prediction_of(f"hugetext=1 hugetext={value}", BITS)
    assert modes(prediction) == [1]
    assert [message.text for message in prediction.messages] == [MESSAGE]
    alone = prediction_of(f"hugetext={value}", BITS)
    assert modes(alone) == []
    assert FILE in [one.subject for one in alone.unjudged]


def test_it_is_lost_on_a_small_machine(prediction_of: PredictWith) -> None:
    assert modes(prediction_of("hugetext=3", BITS, "384M")) == [0]


def test_a_kernel_that_may_have_a_switch_is_held_to_what_both_kinds_do(prediction_of: PredictWith) -> None:
    assert modes(prediction_of("hugetext=1", UNCLEAR)) == [1]
    unclear = prediction_of("hugetext=3", UNCLEAR)
    assert modes(unclear) == []
    assert FILE in [one.subject for one in unclear.unjudged]
    assert any(MESSAGE in pattern.replace("\\", "") for pattern in unclear.tolerated)


def test_a_kernel_without_it_is_not_judged(prediction_of: PredictWith) -> None:
    assert modes(prediction_of("hugetext=3", {})) == []


def kernel_that_takes_4_for_3(words: str) -> int:
    """Return what hugetext_enabled shows on a kernel that cuts the number instead of refusing it."""
    mode = 0
    for value in re.findall(r"hugetext=(\S+)", words):
        with suppress(ValueError):
            mode = min(3, max(int(value, 0), 0)) if not value.startswith("-") else mode
    return mode


def test_a_mode_that_is_too_large_is_told_from_another_one(prediction_of: PredictWith) -> None:
    target = Target("x86_64", "max", find_mmu("x86_64", 4 * KIB), frozenset({"pse", "pdpe1gb"}))
    caught = set()
    for case in load_group("other", target):
        if "hugetext" not in case.name or "small" in case.name:
            continue
        prediction = prediction_of(case.words, BITS)
        seen = {FILE: kernel_that_takes_4_for_3(case.words)}
        if any(one.subject == FILE for one in compare(prediction, seen, [])):
            caught.add(case.name)
    assert caught == {"/other/hugetext-too-large-after-one"}
