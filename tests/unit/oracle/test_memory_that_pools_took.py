"""Real machines, of which one number about their memory is falsified."""

import re
from collections.abc import Callable

import pytest

from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import boot_observations, describe
from hugepage_qa.oracle.boot.predict import predict
from hugepage_qa.oracle.compare import compare

GetCapture = Callable[[str], CapturedTree]
NODES, CMA = "x86_64-max-6.1-nodes", "x86_64-max-7.3-cma-only"
KIB_OF_A_PAGE = 1 << 20


def broken_rules(tree: CapturedTree) -> set[tuple[str, str]]:
    """Return subject and rule of what differs."""
    facts = read_facts(tree)
    prediction = predict(facts.command_line, describe(facts))
    differences = compare(prediction, boot_observations(facts), [line.text for line in facts.log])
    return {(one.subject, one.rule.name) for one in differences}


def with_more(tree: CapturedTree, path: str, name: str, amount: int) -> CapturedTree:
    """Return ``tree`` with ``amount`` more in the first line ``name`` of a file."""
    pattern = re.compile(rf"({name}:? +)(\d+)")
    text = pattern.sub(lambda found: f"{found[1]}{int(found[2]) + amount}", tree.files[path], count=1)
    assert text != tree.files[path]
    return CapturedTree({**tree.files, path: text})


@pytest.mark.parametrize("node", ["", "node1/"])
@pytest.mark.parametrize(
    ("amount", "rule"), [(-KIB_OF_A_PAGE, "total-has-the-pools"), (KIB_OF_A_PAGE, "total-is-there")]
)
def test_a_total_without_a_gigantic_page_or_with_it_twice(
    capture: GetCapture, node: str, amount: int, rule: str
) -> None:
    path = f"sys/devices/system/node/{node}meminfo" if node else "proc/meminfo"
    assert broken_rules(with_more(capture(NODES), path, "MemTotal", amount)) == {(f"{node}meminfo/MemTotal", rule)}


def test_the_difference_tells_what_is_missing(capture: GetCapture) -> None:
    facts = read_facts(with_more(capture(NODES), "proc/meminfo", "MemTotal", -KIB_OF_A_PAGE))
    prediction = predict(facts.command_line, describe(facts))
    (difference,) = compare(prediction, boot_observations(facts), [line.text for line in facts.log])
    least = int(difference.expected.removeprefix("at least ").partition(" ")[0])
    assert least > int(difference.found)


def test_a_contiguous_area_on_another_node(capture: GetCapture) -> None:
    tree = capture(CMA)
    zones = tree.files["proc/zoneinfo"]
    assert broken_rules(tree) == set()
    moved = CapturedTree({**tree.files, "proc/zoneinfo": re.sub(r"( cma +)524288", r"\g<1>0", zones)})
    assert broken_rules(moved) == {("node0/zoneinfo/cma", "cma-on-node")}


def test_a_kernel_that_does_not_show_areas_by_node(capture: GetCapture) -> None:
    tree = capture(CMA)
    zones = re.sub(r"\n +cma +\d+", "", tree.files["proc/zoneinfo"])
    assert "node0/zoneinfo/cma" not in boot_observations(
        read_facts(CapturedTree({**tree.files, "proc/zoneinfo": zones}))
    )
