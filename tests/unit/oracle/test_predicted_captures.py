"""The model against real machines of four architectures: no difference on any capture."""

from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import boot_observations, describe
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.compare import compare


def test_real_machine_is_as_predicted(any_capture: CapturedTree) -> None:
    facts = read_facts(any_capture)
    prediction = predict(facts.command_line, describe(facts))
    assert prediction.expectations
    assert compare(prediction, boot_observations(facts), [line.text for line in facts.log]) == []


def test_real_machine_is_not_another_one(any_capture: CapturedTree) -> None:
    """The same machine lacks the complaint that one more word would have brought."""
    facts = read_facts(any_capture)
    prediction = predict(f"{facts.command_line} hugepagesz=3M", describe(facts))
    assert compare(prediction, boot_observations(facts), [line.text for line in facts.log])
