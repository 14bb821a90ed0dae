"""A case without a documented rule, or with a reference that leads nowhere, is not documented silently."""

from dataclasses import replace
from pathlib import Path

import pytest

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest, Entry, catalogued_tests
from hugepage_qa.catalogue.pages import problems, render_pages
from hugepage_qa.catalogue.references import References
from hugepage_qa.errors import InputError

KNOWN = References.known()
ENTRY = Entry("pool/grow", "the pool grows", "mm/hugetlb.c set_max_huge_pages(); mmap(2)")
TEST = CataloguedTest("/tests/pool/resize", "Pools", "Resizes them.", "5m", (ENTRY,))


def test_every_case_of_the_suite_is_documented(tests: list[CataloguedTest]) -> None:
    assert not list(problems(tests, KNOWN))


def test_a_good_case_has_no_problem() -> None:
    assert not list(problems([TEST], KNOWN))


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (replace(ENTRY, statement=" "), "expected a statement"),
        (replace(ENTRY, source=""), "expected the source"),
        (replace(ENTRY, source="mm/hugetbl.c"), "no mm/hugetbl.c in the kernel"),
        (replace(ENTRY, source="mm/hugetlb.c set_min_huge_pages()"), "no set_min_huge_pages() in mm/hugetlb.c"),
        (replace(ENTRY, source="Documentation/admin-guide/mm/hugepage.rst"), "in the kernel"),
        (replace(ENTRY, source="nmap(2)"), "no manual page nmap(2)"),
        (replace(ENTRY, source="somebody said so"), "names no document"),
        (replace(ENTRY, source="set_min_huge_pages()"), "no set_min_huge_pages() in the kernel"),
    ],
)
def test_a_case_without_rule_or_with_a_dead_reference_is_refused(spoiled: Entry, why: str) -> None:
    (problem,) = problems([replace(TEST, entries=(spoiled,))], KNOWN)
    assert problem.startswith("/tests/pool/resize: case pool/grow: ")
    assert why in problem


@pytest.mark.parametrize("spoiled", [replace(TEST, summary=""), replace(TEST, description="")])
def test_a_test_that_says_nothing_is_refused(spoiled: CataloguedTest) -> None:
    assert "expected a summary and a description" in next(problems([spoiled], KNOWN))


def test_pages_name_every_case_its_rule_and_its_source() -> None:
    where = replace(ENTRY, where="2 NUMA nodes")
    pages = render_pages([replace(TEST, entries=(where,))])
    told = [
        "```{qa:case} pool/grow",
        "the pool grows",
        "",
        "*Source:* mm/hugetlb.c set\\_max\\_huge\\_pages(); mmap(2)",
        "",
        "*Only:* 2 NUMA nodes",
        "```",
    ]
    assert "\n".join(told) in pages["pool.md"]
    assert "| [pool](pool.md) | 1 | 1 |" in pages["index.md"]


def test_words_are_no_markup_but_code_stays_code() -> None:
    boot = replace(ENTRY, statement="`hugepages=*` is *not* taken")
    assert "\n`hugepages=*` is \\*not\\* taken\n" in render_pages([replace(TEST, entries=(boot,))])["pool.md"]


def test_documents_of_the_kernel_are_links() -> None:
    document = replace(ENTRY, source="Documentation/mm/hugetlbfs_reserv.rst; mm/hugetlb.c")
    link = "[Documentation/mm/hugetlbfs\\_reserv.rst](https://docs.kernel.org/mm/hugetlbfs_reserv.html); mm/hugetlb.c"
    assert f"*Source:* {link}\n" in render_pages([replace(TEST, entries=(document,))])["pool.md"]


def test_cases_that_several_tests_run_are_shown_once() -> None:
    pages = render_pages([TEST, replace(TEST, name="/tests/pool/again")])
    assert pages["pool.md"].count("the pool grows") == 1
    assert "those of /tests/pool/resize" in pages["pool.md"]
    assert "| [pool](pool.md) | 2 | 1 |" in pages["index.md"]


def write_tree(root: Path, command: str) -> Path:
    (root / ".fmf").mkdir()
    (root / ".fmf" / "version").write_text("1\n", encoding="utf-8")
    (root / "tests" / "a").mkdir(parents=True)
    (root / "tests" / "a" / "main.fmf").write_text(f"test: {command}\n", encoding="utf-8")
    return root


def test_a_test_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, "../run.sh hugepage-qa run gone.py")
    with pytest.raises(InputError, match=r"runs gone\.py, which is not in"):
        list(catalogued_tests(tree))


def test_a_file_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, "../run.sh hugepage-qa run bad.py")
    (tree / "tests" / "a" / "bad.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        list(catalogued_tests(tree))


def test_no_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        list(catalogued_tests(tmp_path))
