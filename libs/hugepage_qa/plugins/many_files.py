"""The Avocado test that stands for many files: each test of Avocado has a process and a log, which take time, too."""

from pathlib import Path
from types import ModuleType

from hugepage_qa.cases.area_files import areas_of, read_areas
from hugepage_qa.errors import InputError
from hugepage_qa.plugins.asked import Asked
from hugepage_qa.plugins.avocado_test import LiveTest

#: what Avocado is asked for
REFERENCE = f"{__file__}:ManyFiles.test_all"

_FILES = Asked.from_environment().files


def needs_only_areas(module: ModuleType) -> bool:
    """Tell whether the tests of ``module``, a file of tests, do no more than this one does for many files."""
    tests = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, LiveTest)]
    return bool(areas_of(module)) and all(test.needs_only_areas for test in tests)


class ManyFiles(LiveTest):
    """Runs the areas of the files that ``hugepage-qa run`` names."""

    timeout = LiveTest.timeout * max(1, len(_FILES))

    def test_all(self) -> None:
        """All areas, in the order of their files."""
        try:
            areas = [area for file in _FILES for area in read_areas(Path(file))]
        except InputError as error:
            self.error(str(error))
        self.run_areas(areas)
