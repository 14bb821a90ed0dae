"""Kernels before 5.16 read hugepages= in another way, and those before 6.1 have no files of nodes without memory."""

import pytest
from tests.unit.oracle.conftest import MakeMachine

from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.prediction import Prediction

FILE_OF_NODE_1 = "node1/hugepages-2048kB/nr_hugepages"


def left_open(prediction: Prediction) -> list[str]:
    return [one.subject for one in prediction.unjudged]


@pytest.mark.parametrize("value", ["0:16", "1:16", "0:8,1:8", "9:1", "12:4", "0:", "many", "-1", " 4"])
def test_what_only_later_kernels_take_for_nodes_or_refuse_is_left_open(make_machine: MakeMachine, value: str) -> None:
    words = f'"hugepages={value}"'
    old, new = (predict(words, make_machine(version=version, memory="1G,1G")) for version in ("5.14", "5.16"))
    assert left_open(old) == ["hugepages"]
    assert old.may_exhaust_memory, "1:99999 may be 1 page, or more than there is"
    assert "hugepages" not in left_open(new)


@pytest.mark.parametrize("value", ["16", "010", "0x10", "16K", "", "16,1:8"])
def test_what_all_read_alike_is_judged(make_machine: MakeMachine, value: str) -> None:
    prediction = predict(f"hugepages={value}", make_machine(version="5.10", memory="1G,1G"))
    assert left_open(prediction) == []
    assert FILE_OF_NODE_1 in {one.subject for one in prediction.expectations}


@pytest.mark.parametrize(("version", "there"), [("5.10", False), ("6.0", False), ("6.1", True)])
def test_the_files_of_a_node_without_memory(make_machine: MakeMachine, version: str, there: bool) -> None:
    prediction = predict("hugepages=16", make_machine(version=version, memory="1G,0"))
    assert (FILE_OF_NODE_1 in {one.subject for one in prediction.expectations}) is there
    assert any(FILE_OF_NODE_1 in str(one.expected) for one in prediction.expectations) is there
