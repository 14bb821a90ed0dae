"""Random operations on the pools, compared with the model after each of them."""

from hugepage_qa.errors import InputError
from hugepage_qa.plugins.live_test import LiveTest
from hugepage_qa.report.settings import PoolSettings


class RandomOperations(LiveTest):
    """Programs that are drawn at random; one that fails is reported in its smallest form.

    :avocado: enable
    :avocado: tags=hugetlb,pool,random
    """

    timeout = 600

    def test_random(self) -> None:
        """All page sizes of the machine."""
        try:
            settings = PoolSettings.from_environment()
        except InputError as error:
            self.error(str(error))
        self.run_random(settings.seed, settings.operations)
