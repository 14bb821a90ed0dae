"""The Avocado test that runs the cases of an area, or random operations, on the running machine."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.live.case import Area
from hugepage_qa.live.host import Backend, Host
from hugepage_qa.live.judge import LiveJudgement, run_area
from hugepage_qa.live.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.live.random_pool.run import run_random_programs
from hugepage_qa.live.real_machine import real_machine
from hugepage_qa.plugins.case_test import CaseTest
from hugepage_qa.verdict import Verdict


class LiveTest(CaseTest):
    """Base of the tests below tests/ that change the running machine; one result for each case and page size."""

    def run_area(self, area: Area) -> None:
        """Run the cases of ``area`` and end as the gravest of them did."""
        self._run(lambda host: run_area(area, host, self.record))

    def run_random(self, seed: int, operations: int) -> None:
        """Run random programs of ``operations`` for each page size and end as the gravest verdict says."""
        self.log.info("seed %d, %d operations of each page size", seed, operations)

        def run(host: Host) -> None:
            sizes = read_pool_view(host).pools
            if not sizes:
                self.record(LiveJudgement("/random", Verdict.SKIP, NO_HUGETLB, seconds=0))
            for size in sizes:
                self.record(run_random_programs(host, size, seed, operations, lambda _done: None))

        self._run(run)

    def _run(self, run: Callable[[Host], None]) -> None:
        try:
            with self.machine() as machine:
                run(Host(machine))
        except InputError as error:
            self.error(str(error))
        self.conclude()

    def machine(self) -> AbstractContextManager[Backend]:
        """Return the machine that the cases act on."""
        return real_machine(Path(self.workdir))
