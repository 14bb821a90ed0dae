"""Which cases have room on this host."""

from dataclasses import replace

from hugepage_qa.matrix.case import BootCase
from hugepage_qa.matrix.run import skipped_for_memory
from hugepage_qa.sizes import GIB
from hugepage_qa.verdict import Verdict

SMALL = BootCase(name="/small", architecture="x86_64", cpu="max", words="hugepages=1", memory=(GIB,))
LARGE = replace(SMALL, name="/large", memory=(4 * GIB, 12 * GIB))


def test_a_machine_that_the_host_has_no_memory_for_is_skipped() -> None:
    [skipped] = skipped_for_memory([SMALL, LARGE], 8 * GIB)
    assert (skipped.case, skipped.verdict, skipped.command_line) == (LARGE, Verdict.SKIP, "hugepages=1")
    assert skipped.reason == "its machine needs 16640 MiB of host memory, and less is free"


def test_nothing_is_skipped_where_there_is_memory() -> None:
    assert list(skipped_for_memory([SMALL, LARGE], 32 * GIB)) == []
