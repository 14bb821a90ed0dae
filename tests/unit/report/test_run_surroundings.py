"""What no test tells of a run is kept with it."""

from pathlib import Path

import pytest

from hugepage_qa.cases.result import Verdict
from hugepage_qa.report.run_directory import read_surroundings, write_surroundings


def test_nothing_is_kept_where_nothing_is_wrong(tmp_path: Path) -> None:
    for code in (0, 1, 2, 4):
        write_surroundings(tmp_path, code, [])
    assert list(tmp_path.iterdir()) == []
    assert read_surroundings(tmp_path) == []


def test_what_is_wrong_is_read_again(tmp_path: Path) -> None:
    changes = ["/var/tmp/left: absent before, directory after", "vm/nr_hugepages: 0 before, 7 after"]
    write_surroundings(tmp_path, 143, changes)
    tmt, host = read_surroundings(tmp_path)
    assert (tmt.name, tmt.verdict, tmt.reasons) == (
        "/surroundings/tmt",
        Verdict.ERROR,
        ("tmt ended with exit code 143",),
    )
    assert (host.name, host.verdict) == ("/surroundings/host", Verdict.ERROR)
    assert host.reasons == tuple(f"the host has changed: {change}" for change in changes)


@pytest.mark.parametrize("text", ["", "[", "- name: /surroundings/host\n", "a: b\n"])
def test_a_file_of_others_is_refused(text: str, tmp_path: Path) -> None:
    write_surroundings(tmp_path, 3, [])
    (tmp_path / "surroundings.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read_surroundings(tmp_path)
