"""Areas that leave dirt for who gets the memory next have machines where the kernel clears nothing by itself."""

from tests.unit.cases.areas import read_areas

from hugepage_qa.cases import area_files


def test_who_leaves_dirt_has_a_machine_that_does_not_clear_pages() -> None:
    """Where pages are cleared as they are allocated, nobody sees that a huge page was not when it was made."""
    uncleared = {area.name for area in read_areas() if area.uncleared}
    files = [
        file
        for folder in area_files.LIVE
        for file in (area_files.tests_directory() / folder).glob("*.py")
        if "leave_dirt(live)" in file.read_text("utf-8")
    ]
    assert files
    for file in files:
        assert f"{file.parent.name}/{file.stem.replace('_', '-')}" in uncleared, file.name
