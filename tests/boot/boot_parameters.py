"""Huge page boot parameters, tried on throwaway machines and judged against the model."""

from pathlib import Path

from avocado import Test

from hugepage_qa.errors import InputError
from hugepage_qa.matrix.judge import Judgement
from hugepage_qa.matrix.run import Settings, run_named, run_random
from hugepage_qa.report.case_result import Outcome
from hugepage_qa.report.settings import BootSettings
from hugepage_qa.report.whiteboard import CaseRecorder


class BootParameters(Test):  # type: ignore[misc] # Avocado has no types
    """Boot machines of one architecture (HUGEPAGE_QA_ARCH) with huge page parameters and compare what they show.

    :avocado: tags=boot,hugetlb,thp
    """

    # shorter than the duration in main.fmf: a test that Avocado stops keeps the cases that it has judged
    timeout = 110 * 60

    def setUp(self) -> None:
        """Read the settings; a wrong one is an error of whoever set it."""
        self.cases = CaseRecorder(Path(self.outputdir))
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
        """Every named case: what the documentation promises, and what broke before.

        :avocado: tags=boot,hugetlb,thp,named
        """
        run_named(self.settings.architecture, self.matrix, self.record)
        self.conclude()

    def test_random(self) -> None:
        """Random command lines; a failing one is reported in its smallest form.

        :avocado: tags=boot,hugetlb,thp,random
        """
        settings = self.settings
        run_random(settings.architecture, settings.random, settings.seed, self.matrix, self.record)
        self.conclude()

    def record(self, judgement: Judgement) -> None:
        """Keep one case; the whiteboard is complete at any time."""
        self.cases.add(judgement)
        self.whiteboard = self.cases.text
        self.log.info("%s %s %s", judgement.verdict.value, judgement.name, judgement.reason)

    def conclude(self) -> None:
        """End as the gravest case did."""
        if errors := self.cases.summary(Outcome.ERROR):
            self.error(errors)
        if failures := self.cases.summary(Outcome.FAIL):
            self.fail(failures)
        if not self.cases.text:
            self.error("no case was run")
        if self.cases.all_skipped:
            self.cancel(self.cases.summary(Outcome.SKIP))
