"""Build the documentation: HTML and the manual page below build/docs. Warnings are errors.

The pages on cases are made from the metadata of the tests and from the code, that on kernels from docs/kernels.
A case without a rule, or whose source leads nowhere, is one line, and nothing is built.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from hugepage_qa.catalogue.pages import problems, render_pages
from hugepage_qa.catalogue.references import References
from hugepage_qa.catalogue.tests_of_fmf import catalogued_tests
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.debian_kernels import all_kernels
from hugepage_qa.report.survey_page import render_survey
from hugepage_qa.report.survey_record import read_records

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "docs"
BUILDERS = ("html", "man")


def main() -> int:
    """Return 0 when everything was built, 1 when a case or a page is not good enough, 3 for a tree that is none."""
    try:
        tests = list(catalogued_tests(ROOT))
        records = read_records(ROOT / "docs" / "kernels")
    except InputError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 3
    found = list(problems(tests, References.known()))
    if found:
        print("\n".join(f"docs: {problem}" for problem in found), file=sys.stderr)
        return 1
    shutil.rmtree(BUILD, ignore_errors=True)
    source = BUILD / "source"
    shutil.copytree(ROOT / "docs", source)
    (source / "cases").mkdir()
    for name, text in render_pages(tests).items():
        (source / "cases" / name).write_text(text, encoding="utf-8")
    survey = render_survey(records, [kernel.name for kernel in all_kernels()])
    (source / "kernels.md").write_text(survey, encoding="utf-8")
    for builder in BUILDERS:
        sphinx = [sys.executable, "-m", "sphinx", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet"]
        code = subprocess.run([*sphinx, "-b", builder, str(source), str(BUILD / builder)], check=False).returncode
        if code:
            return 1
    print(f"{len(tests)} tests and their cases: {BUILD / 'html' / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
