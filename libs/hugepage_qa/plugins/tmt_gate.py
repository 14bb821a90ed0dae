"""tmt's ``report: how: hugepage-gate``: the reports of the performance gate of all tests of a plan in one place.

Loaded by tmt through its entry point alone. The verdicts themselves are in results.yaml, which needs no plugin.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import tmt.log
import tmt.result
import tmt.steps.report
import tmt.utils
from tmt.container import field

_SUMMARY = "gate.md"
_PAGES = "pages"
_NOTHING = "no test has left a report of the performance gate\n"


@dataclass
class ReportGateData(tmt.steps.report.ReportStepData):
    """Keys of the plan."""

    file: Path | None = field(  # noqa: RUF009 - makes a field of dataclasses
        default=None,
        option="--file",
        metavar="PATH",
        help="Also write the summary in Markdown here.",
        normalize=tmt.utils.normalize_path,
    )


@tmt.steps.provides_method("hugepage-gate")
class ReportGate(tmt.steps.report.ReportPlugin[ReportGateData]):
    """
    Show the verdicts of the performance gate, and gather its reports.

    The summary is gate.md in the directory of this report, pages with
    pictures are beside it.

    .. code-block:: yaml

        report:
            how: hugepage-gate
            file: /tmp/gate.md
    """

    _data_class = ReportGateData

    @property
    def _preserved_workdir_members(self) -> set[str]:
        # the cleanup step removes everything else
        return {*super()._preserved_workdir_members, _SUMMARY, _PAGES}

    def go(self, *, logger: tmt.log.Logger | None = None) -> None:
        """Gather the reports."""
        super().go(logger=logger)
        if self.is_dry_run:
            return
        execute = self.step.plan.execute
        texts = []
        for result in execute.results():
            for log in result.log:
                source = execute.step_workdir / log
                if log.suffix == ".md":
                    texts.append(f"# {result.name}\n\n{source.read_text(encoding='utf-8', errors='replace')}")
                    self.info(result.name, " ".join(result.note[:1]))
                elif log.suffix == ".html":
                    self._keep(source, result.name)
        summary = self.phase_workdir / _SUMMARY
        summary.write_text("\n".join(texts) or _NOTHING, encoding="utf-8")
        self.info("summary", str(summary))
        if self.data.file is not None:
            shutil.copyfile(summary, self.data.file)

    def _keep(self, source: Path, name: str) -> None:
        pages = self.phase_workdir / _PAGES
        pages.mkdir(exist_ok=True)
        shutil.copyfile(source, pages / f"{name.strip('/').replace('/', '-')}.html")
