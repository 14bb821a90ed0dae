"""Random operations on the pools, compared with the model after each of them."""

from hugepage_qa.cases.test_settings import PoolSettings
from hugepage_qa.errors import InputError
from hugepage_qa.plugins.random_test import RandomTest


class RandomOperations(RandomTest):
    """Programs that are drawn at random; one that fails is reported in its smallest form.

    :avocado: enable
    """

    def test_random(self) -> None:
        """All page sizes of the machine."""
        try:
            settings = PoolSettings.from_environment()
        except InputError as error:
            self.error(str(error))
        self.run_random(settings.seed, settings.operations)
