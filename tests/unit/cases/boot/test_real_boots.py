"""Real kernels of the distribution on every board, through the whole path: boot, read, predict, compare."""

import pytest

from hugepage_qa.cases.boot.boot_case import BootCase
from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings
from hugepage_qa.cases.result import Verdict
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.sizes import GIB

pytestmark = pytest.mark.boots

WORDS = "hugepages=8 hugepages=9 transparent_hugepage=never hugepagesz=3M"


@pytest.mark.parametrize(
    ("architecture", "cpu"), [(board.architecture, cpu) for board in BOARDS.values() for cpu in board.cpus]
)
def test_kernel_does_what_its_documents_say(architecture: str, cpu: str) -> None:
    matrix = Matrix(architecture, Settings())
    case = BootCase("/real", architecture, cpu, WORDS, (2 * GIB,))
    (judgement,) = matrix.run([case])
    assert (judgement.verdict, judgement.reason) == (Verdict.PASS, "")


def test_what_is_not_so_fails() -> None:
    """A case that expects something else of a real kernel fails with both values."""
    matrix = Matrix("x86_64", Settings())
    case = BootCase("/real", "x86_64", "max", "hugepages=8", (GIB,), facts={"meminfo/HugePages_Total": 9})
    (judgement,) = matrix.run([case])
    assert judgement.verdict is Verdict.FAIL
    assert "meminfo/HugePages_Total: expected 9, found 8" in judgement.reason
