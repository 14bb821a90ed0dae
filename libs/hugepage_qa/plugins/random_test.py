"""The Avocado test that runs random programs: the only one that needs Hypothesis."""

from hugepage_qa.cases.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.cases.random.random_run import run_random_programs
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.machine.host import Host
from hugepage_qa.plugins.avocado_test import LiveTest


class RandomTest(LiveTest):
    """Base of the tests that run random programs; one result for each page size."""

    needs_only_areas = False

    def run_random(self, seed: int, operations: int) -> None:
        """Run random programs of ``operations`` for each page size and end as the worst verdict says."""
        self.log.info("seed %d, %d operations of each page size", seed, operations)

        def run(host: Host) -> None:
            sizes = read_pool_view(host).pools
            if not sizes:
                self.record(Result("/random", Verdict.SKIP, (NO_HUGETLB,)))
            for size in sizes:
                self.record(run_random_programs(host, size, seed, operations))

        self.run_on_machine(run)
