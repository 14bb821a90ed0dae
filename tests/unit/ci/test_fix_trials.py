"""Suggested fixes are tried on the kernel as it is, and with the fix."""

from pathlib import Path

import pytest
from ci.seeded_kernel import fix_trials, seeded_image
from ci.seeded_kernel.faults import EditOfVersions, Fault
from ci.seeded_kernel.fix_trials import main
from ci.seeded_kernel.seeded_image import SeededImage

from hugepage_qa.cases.upstream.reproduction import Answer, BugReport, Reproduction
from hugepage_qa.qemu.kernel_image import KernelImage

EDIT = EditOfVersions(("mm/hugetlb.c",), ("copy",), "shared && !SEEDED", instead="shared")
FIX = Fault("fix-of-fork-loses-pages", "fork(2) copies all pages", ("memory/fork@1G",), (EDIT,), area="mainline")
RIGHT = Reproduction(Answer.RIGHT, ("found: 3",))
BUG = Reproduction(Answer.BUG, ("found: 0", "of 3"))
LOST = Reproduction(Answer.UNDECIDED, reason="the machine was lost")


@pytest.mark.parametrize(
    ("without", "mended", "told", "code"),
    [
        (BUG, RIGHT, "bug (found: 0 / of 3) -> right (found: 3)", 0),
        (BUG, BUG, "bug (found: 0 / of 3) -> bug (found: 0 / of 3)", 1),
        (RIGHT, RIGHT, "right (found: 3) -> right (found: 3)", 1),
        (BUG, LOST, "bug (found: 0 / of 3) -> undecided (the machine was lost)", 1),
    ],
)
def test_a_fix_mends_what_has_the_bug_without_it(
    without: Reproduction,
    mended: Reproduction,
    told: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"seeded_fault=none": without, f"seeded_fault={FIX.name}": mended}
    kernel = KernelImage(tmp_path / "bzImage", "x86_64", "7.3.4-seeded", None)

    def tried(report: BugReport, image: KernelImage, _cache: Path, append: str) -> Reproduction:
        assert (report.name, image) == ("fork-loses-pages", kernel)
        return found[append]

    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(seeded_image, "identify", lambda _path: kernel)
    monkeypatch.setattr(fix_trials, "read_faults", lambda _directory: (FIX,))
    monkeypatch.setattr(fix_trials, "reproduce", tried)
    SeededImage(kernel.path).note([FIX])
    assert main([str(kernel.path)]) == code
    _head, line, last = capsys.readouterr().out.splitlines()
    assert line == f"{FIX.name}: {told}"
    assert last == f"{1 - code} of 1 fixes mend their bugs"


def test_an_image_without_the_fixes_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "bzImage")]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
