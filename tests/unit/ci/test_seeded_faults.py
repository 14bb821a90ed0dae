"""Faults of the seeded kernel: reading them, and one clear line for what is wrong with a file of them."""

from pathlib import Path

import pytest
import yaml
from ci.seeded_kernel import build_kernel
from ci.seeded_kernel.build_kernel import main
from ci.seeded_kernel.detection_table import Outcome, table
from ci.seeded_kernel.faults import LONGER_PATHS, SUGGESTED_FIXES, Fault, choose, read_faults
from ci.seeded_kernel.proofs import Shown, judge, program_text
from ci.seeded_kernel.seeded_source import SeededSource, header

from hugepage_qa.cases.area_files import LIVE, tests_directory
from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.cases.upstream.reproduction import bug_reports
from hugepage_qa.errors import InputError
from hugepage_qa.version import KernelVersion

EDIT: dict[str, object] = {
    "files": ["mm/pool.c"],
    "functions": ["grow"],
    "instead": "return count;",
    "code": "return count - SEEDED;",
}
FAULT: dict[str, object] = {
    "name": "one-page-fewer",
    "breaks": "the pool has one page fewer than it was given",
    "found_in": ["pool/pool"],
    "edits": [EDIT],
    "proof": {"program": "pool(4);"},
}
SOURCE = """\
#include <linux/kernel.h>

int grow(int count)
{
\treturn count;
}
"""


def written(directory: Path, *faults: dict[str, object]) -> Path:
    """Write ``faults`` as those of one area."""
    (directory / "pool.yaml").write_text(yaml.safe_dump(list(faults)), encoding="utf-8")
    return directory


def source_of_a_kernel(place: Path) -> SeededSource:
    """Return a tree with all that is edited in every kernel, and ``grow``."""
    tree = place / "linux"
    for folder in ("mm", "init", "include/linux"):
        (tree / folder).mkdir(parents=True)
    (tree / "Makefile").write_text("VERSION = 6\nPATCHLEVEL = 1\nSUBLEVEL = 9\n")
    (tree / "mm" / "Makefile").write_text("obj-y := pool.o\n")
    (tree / "mm" / "pool.c").write_text(SOURCE)
    start = "#include <linux/init.h>\n\nvoid __init parse_early_param(void)\n{\n\tif (done)\n\t\treturn;\n}\n"
    (tree / "init" / "main.c").write_text(start)
    return SeededSource(tree, place / "originals")


def test_no_fault_is_another_one_by_another_name() -> None:
    """It would be found, and counted, twice: all its edits put the same code to the same places."""
    edits = {fault.name: _edits_of(fault) for fault in read_faults()}
    of_edits: dict[tuple[str, ...], list[str]] = {}
    for name, each in edits.items():
        for edit in each:
            of_edits.setdefault(edit, []).append(name)
    alike = {
        (name, other)
        for name, each in edits.items()
        for other in of_edits[next(iter(each))]
        if name != other and each <= edits[other]
    }
    assert not alike


def _edits_of(fault: Fault) -> set[tuple[str, ...]]:
    """Return function, kind of anchor, anchor and code of each edit, without what a compiler passes over."""
    return {
        (
            function,
            kind,
            *("".join(text.split()).replace("\\", "") for text in (anchor, edit.code.replace("@", anchor))),
        )
        for edit in fault.edits
        for kind, anchor in (("before", edit.before), ("after", edit.after), ("instead", edit.instead))
        for function in edit.functions
        if anchor
    }


def test_our_faults_are_many_and_name_areas_that_there_are() -> None:
    faults = read_faults()
    assert len(faults) >= 80
    for fault in (*faults, *read_faults(SUGGESTED_FIXES)):
        for area in fault.found_in:
            folder, _, name = area.partition("@")[0].partition("/")
            if folder == "boot":
                assert name in groups(), area
            else:
                assert folder in LIVE, area
                assert (tests_directory() / folder / f"{name}.py").is_file(), area


def test_longer_paths_are_faults_that_no_case_is_to_find() -> None:
    longer = read_faults(LONGER_PATHS)
    assert longer
    assert {fault.found_in for fault in longer} == {("path-length",)}
    assert all(fault.edits_for(KernelVersion(6, 1)) and not fault.proof.program for fault in longer)
    assert {fault.name for fault in longer}.isdisjoint(fault.name for fault in read_faults())


def test_fixes_are_of_bugs_whose_reports_tell_that_they_were_tested() -> None:
    fixes = read_faults(SUGGESTED_FIXES)
    for fix in fixes:
        assert fix.edits_for(KernelVersion(7, 3))
        assert not fix.edits_for(KernelVersion(6, 1))
        report = bug_reports()[fix.name.removeprefix("fix-of-")]
        assert "Tested on Linux 7.3.4" in report.text.partition("## Suggested fix")[2], report.name
    tested = [report.name for report in bug_reports().values() if "Tested on Linux 7.3.4" in report.text]
    assert sorted(fix.name for fix in fixes) == [f"fix-of-{name}" for name in tested]
    page = (Path(__file__).parents[3] / "docs" / "upstream-reports.md").read_text("utf-8")
    assert f"{len(fixes)} fixes were tried" in page


def test_a_fault_without_a_proof_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a proof of all faults but those of longer_paths and suggested_"):
        read_faults(written(tmp_path, {key: value for key, value in FAULT.items() if key != "proof"}))


def test_a_fault_has_all_that_its_entry_says(tmp_path: Path) -> None:
    (fault,) = read_faults(written(tmp_path, FAULT))
    assert (fault.name, fault.area, fault.found_in) == ("one-page-fewer", "pool", ("pool/pool",))
    (edit,) = fault.edits_for(KernelVersion(6, 1))
    assert (edit.files, edit.functions, edit.anchor) == (("mm/pool.c",), ("grow",), "return count;")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "One Page"}, "does not match"),
        ({"breaks": "short"}, "is too short"),
        ({"unknown": 1}, "unknown"),
        ({"edits": []}, "should be non-empty"),
        ({"edits": [{"files": ["a"], "functions": ["f"], "code": "SEEDED"}]}, "is not valid under any"),
        ({"edits": [{"files": ["a"], "functions": ["f"], "before": "abc", "code": "return;"}]}, "expected SEEDED"),
        ({"edits": [{"files": ["a"], "functions": ["f"], "before": "ab(", "code": "SEEDED"}]}, "no regular expression"),
    ],
)
def test_what_is_wrong_with_a_fault_is_one_line(change: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_faults(written(tmp_path, FAULT | change))
    assert told in str(raised.value)
    assert "pool.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_two_faults_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two faults are named one-page-fewer"):
        read_faults(written(tmp_path, FAULT, FAULT))


def test_a_file_that_is_no_yaml_and_a_directory_without_any(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file with faults"):
        read_faults(tmp_path)
    (tmp_path / "pool.yaml").write_text("- [", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        read_faults(tmp_path)


def test_edits_and_absence_by_version(tmp_path: Path) -> None:
    edits = [EDIT | {"below": "6.12"}, EDIT | {"since": "6.12", "functions": ["enlarge"]}]
    entry = FAULT | {"edits": edits, "absent": {"7.3": "pools have no size there"}}
    (fault,) = read_faults(written(tmp_path, entry))
    functions = {
        release: [edit.functions for edit in fault.edits_for(KernelVersion.parse(release))]
        for release in ("6.1.9", "6.12.0", "7.3.4")
    }
    assert functions == {"6.1.9": [("grow",)], "6.12.0": [("enlarge",)], "7.3.4": []}


def test_choosing_a_fault_that_is_not_there(tmp_path: Path) -> None:
    faults = read_faults(written(tmp_path, FAULT))
    assert choose(faults, []) == faults
    with pytest.raises(InputError, match="fault none: expected"):
        choose(faults, ["none"])


def test_a_source_is_seeded_anew_from_what_was_unpacked(tmp_path: Path) -> None:
    (fault,) = read_faults(written(tmp_path, FAULT))
    source = source_of_a_kernel(tmp_path)
    for _ in range(2):
        source.seed([fault])
        assert "return count - SEEDED(one_page_fewer);" in (source.tree / "mm" / "pool.c").read_text()
        assert (source.tree / "mm" / "Makefile").read_text() == "obj-y := pool.o\nobj-y += seeded_fault.o\n"
    written_at = (source.tree / "mm" / "pool.c").stat().st_mtime_ns
    source.seed([fault])
    assert (source.tree / "mm" / "pool.c").stat().st_mtime_ns == written_at
    assert '"none", "one-page-fewer"' in (source.tree / "include" / "linux" / "seeded_fault.h").read_text()
    source.seed([])
    assert (source.tree / "mm" / "pool.c").read_text() == SOURCE


def test_nothing_is_written_where_an_edit_cannot_be_made(tmp_path: Path) -> None:
    (fault,) = read_faults(written(tmp_path, FAULT))
    source = source_of_a_kernel(tmp_path)
    (source.tree / "mm" / "pool.c").write_text(SOURCE.replace("return count;", "return 0;"))
    with pytest.raises(InputError, match=r"one-page-fewer: grow\(\): .* is not found"):
        source.seed([fault])
    assert not (source.tree / "include" / "linux" / "seeded_fault.h").exists()


def test_the_check_names_what_cannot_be_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = read_faults(written(tmp_path, FAULT))
    monkeypatch.setattr(build_kernel, "read_faults", lambda *others: () if others else faults)
    # somebody may be building there
    monkeypatch.setattr(build_kernel, "PLACE", tmp_path / "build")
    source = source_of_a_kernel(tmp_path)
    assert main(["--check", "--source", str(source.tree)]) == 0
    (source.tree / "mm" / "pool.c").write_text(SOURCE.replace("grow", "shrink"))
    assert main(["--check", "--source", str(source.tree)]) == 1
    assert "one-page-fewer: mm/pool.c: no function grow" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--series", "5.0"], ["--fault", "none"], ["--check", "--source", "nowhere"]])
def test_bad_input_is_one_line_and_exit_code_3(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_header_starts_with_the_healthy_kernel() -> None:
    text = header(["a-b"])
    assert "{ SEEDED_none, SEEDED_a_b }" in text


def test_programs_are_functions_of_one_source(tmp_path: Path) -> None:
    text = program_text(read_faults(written(tmp_path, FAULT)))
    assert "static void proof_one_page_fewer(void)\n{\n\tpool(4);\n}\n" in text
    assert '{ "one-page-fewer", proof_one_page_fewer },' in text


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (["4", "4", "3"], Shown.LIVE),
        (["4", "4", "4"], Shown.NOT_LIVE),
        (["4", "5", "3"], Shown.UNSTEADY),
        (["4"], Shown.UNSTEADY),
    ],
)
def test_a_fault_is_live_where_its_program_prints_something_else(printed: list[str], shown: Shown) -> None:
    assert judge([("", text) for text in printed]).shown is shown


def test_the_table_tells_what_was_found_and_what_was_not(tmp_path: Path) -> None:
    other = FAULT | {"name": "one-page-more"}
    first, second = read_faults(written(tmp_path, FAULT, other))
    outcomes = [outcome(first, "/pool/resize/2M"), outcome(second)]
    text = table(outcomes, ["/pool/alone/2M"])
    assert text.startswith("1 of 2 faults were found.")
    assert "| pool | 2 | 1 |" in text
    assert "* one-page-more: the pool has one page fewer than it was given; **not found** by pool/pool\n" in text
    assert "* `/pool/resize/2M`: one-page-fewer\n" in text
    assert "* `/pool/alone/2M`\n" in text


def outcome(fault: Fault, *found_by: str) -> Outcome:
    return Outcome(fault, found_by, fault.found_in, 1.0)
