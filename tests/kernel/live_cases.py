"""Live cases on throwaway machines of one kernel."""

from hugepage_qa.cases.area_files import live_areas
from hugepage_qa.cases.boot.boot_matrix import Settings
from hugepage_qa.cases.kernel_check import KernelCheck
from hugepage_qa.cases.run_settings import BootSettings, PoolSettings, soak_minutes, wanted_areas
from hugepage_qa.cases.throwaway_run import LiveWanted
from hugepage_qa.errors import InputError
from hugepage_qa.plugins.avocado_test import CaseTest
from hugepage_qa.qemu.lost_machine import MachineLost


class LiveCases(CaseTest):
    """Run live cases, random operations and random races on machines of one architecture (HUGEPAGE_QA_ARCH)."""

    # shorter than the duration in main.fmf: a test that Avocado stops keeps the cases that it has judged
    timeout = 110 * 60

    def test_live(self) -> None:
        """Every area, on each CPU that the architecture is tested on."""
        try:
            settings, pool = BootSettings.from_environment(), PoolSettings.from_environment()
            areas = tuple(live_areas(wanted_areas()))
            machines = Settings(settings.kernel, append=settings.append, cache=settings.cache, say=self.log.info)
            live = LiveWanted(areas, operations=pool.operations, minutes=soak_minutes(), seed=pool.seed)
            check = KernelCheck(settings.architecture, machines, (), 0, live, under_way=self.log.info)
            self.log.info("kernel %s, random operations and races with seed %d", check.kernel.release, pool.seed)
            for result in check.run():
                self.record(result)
        except (InputError, MachineLost) as error:
            self.error(str(error))
        self.conclude()
