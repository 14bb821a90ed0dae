"""Random operations on the pools, compared with the model after each of them."""

from hugepage_qa.cases.pool_view import NO_HUGETLB, read_pool_view
from hugepage_qa.cases.random.random_run import run_random_programs
from hugepage_qa.cases.result import Result, Verdict
from hugepage_qa.cases.run_settings import PoolSettings
from hugepage_qa.errors import InputError
from hugepage_qa.machine.host import Host
from hugepage_qa.plugins.avocado_test import LiveTest


class RandomOperations(LiveTest):
    needs_only_areas = False

    def test_random(self) -> None:
        """All page sizes of the machine, each with a result of its own."""
        try:
            settings = PoolSettings.from_environment()
        except InputError as error:
            self.error(str(error))
        self.log.info("seed %d, %d operations of each page size", settings.seed, settings.operations)

        def run(host: Host) -> None:
            sizes = read_pool_view(host).pools
            if not sizes:
                self.record(Result("/random", Verdict.SKIP, (NO_HUGETLB,)))
            for size in sizes:
                self.record(run_random_programs(host, size, settings.seed, settings.operations))

        self.run_on_machine(run)
