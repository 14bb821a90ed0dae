"""Huge page boot parameters, tried on throwaway machines and judged against the model."""

from hugepage_qa.cases.boot.boot_matrix import Matrix, Settings
from hugepage_qa.cases.run_settings import BootSettings
from hugepage_qa.errors import InputError
from hugepage_qa.plugins.avocado_test import CaseTest


class BootParameters(CaseTest):
    """Boot machines of one architecture (HUGEPAGE_QA_ARCH) with huge page parameters and compare what they show."""

    # shorter than the duration in main.fmf: a test that Avocado stops keeps the cases that it has judged
    timeout = 110 * 60

    def setUp(self) -> None:
        """Read the settings; a wrong one is an error of whoever set it."""
        super().setUp()
        try:
            self.settings = BootSettings.from_environment()
        except InputError as error:
            self.error(str(error))
        self.matrix = Settings(
            kernel=self.settings.kernel,
            append=self.settings.append,
            cache=self.settings.cache,
            say=self.log.info,
        )

    def test_named(self) -> None:
        """The named cases: what the documentation promises, and what broke before."""
        settings = self.settings
        with Matrix(settings.architecture, self.matrix) as matrix:
            for result in matrix.run(matrix.named_cases(settings.groups)):
                self.record(result)
        if not self.cases.text:
            self.cancel(f"no case of {', '.join(settings.groups)} is for {settings.architecture}")
        self.conclude()

    def test_random(self) -> None:
        """Random command lines; a failing one is reported in its smallest form."""
        settings = self.settings
        with Matrix(settings.architecture, self.matrix) as matrix:
            for result in matrix.run_random(settings.random, settings.seed):
                self.record(result)
        self.conclude()
