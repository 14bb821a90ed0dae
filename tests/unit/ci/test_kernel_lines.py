"""Which lines a kernel did not run: counts that machines give are added up, gcov's words are read, functions judged."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from ci.kernel_lines import unrun_lines
from ci.kernel_lines.arc_counts import added, is_of_one_build
from ci.kernel_lines.counting_kernel import COUNTED, have_counted
from ci.kernel_lines.gcov_report import Line, find_unrun, read_gcov, told
from ci.kernel_lines.unrun_lines import LineCounts

from hugepage_qa.errors import InputError

SOURCE = """\
/* of a test */
static int huge_left(struct pool *pool,
\t\t     int wanted)
{
\tif (wanted > pool->free)
\t\treturn -1;
\tVM_BUG_ON(wanted < 0);
\treturn pool->free - wanted;
}

static void small_only(int number)
{
\tnever(number);
}

SYSCALL_DEFINE2(shmget, key_t, key, int, flags)
{
\treturn hugetlb_file(key);
}
"""


def gcda(*counts: int, stamp: bytes = b"aaaa", cut: int = 0) -> bytes:
    """Return a file of one function, as kernel/gcov/gcc_4_7.c writes it."""
    function = struct.pack("<IIIII", 0x01000000, 12, 7, 8, 9)
    arcs = struct.pack(f"<II{len(counts)}Q", 0x01A10000, 8 * len(counts), *counts)
    data = b"adcg" + b"*12B" + stamp + bytes(4) + function + arcs
    return data[: len(data) - cut]


def gcov_json(*lines: tuple[int, int, Sequence[int]], file: str = "/linux/mm/pool.c") -> str:
    """Return number, count and ways of lines as gcov prints them."""
    every = [
        {"line_number": number, "count": count, "branches": [{"count": way} for way in ways]}
        for number, count, ways in lines
    ]
    return json.dumps({"files": [{"file": "/linux/include/linux/mm.h", "lines": []}, {"file": file, "lines": every}]})


class Machine:
    """A machine with one file of counts."""

    def __init__(self, counts: bytes | OSError) -> None:
        self.counts = counts
        self.channel = self

    def ask(self, _letter: str, *_fields: str) -> list[bytes]:
        return []

    def ask_many(self, requests: Sequence[tuple[str, tuple[str]]]) -> list[list[bytes] | OSError]:
        assert [path.rpartition("/")[2] for _letter, (path,) in requests] == ["hugetlb.gcda"]
        return [self.counts if isinstance(self.counts, OSError) else [self.counts]]


def test_makefiles_have_each_file_counted_once(tmp_path: Path) -> None:
    for directory in {Path(name).parent for name in COUNTED}:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        (tmp_path / directory / "Makefile").write_text("obj-y += other.o\n", encoding="utf-8")
    have_counted(tmp_path)
    have_counted(tmp_path)
    assert (tmp_path / "fs" / "Makefile").read_text() == "obj-y += other.o\nGCOV_PROFILE_userfaultfd.o := y\n"
    assert sum(file.read_text().count("GCOV_PROFILE_") for file in tmp_path.rglob("Makefile")) == len(COUNTED)


def test_counts_of_two_machines_are_added() -> None:
    assert added(gcda(0, 2, 2**40), gcda(1, 3, 1)) == gcda(1, 5, 2**40 + 1)


@pytest.mark.parametrize("other", [gcda(1, stamp=b"bbbb"), gcda(1, 2)], ids=["of-another-build", "of-other-functions"])
def test_counts_of_two_builds_are_not_added(other: bytes) -> None:
    with pytest.raises(InputError, match="of two builds"):
        added(gcda(1), other)
    assert is_of_one_build(gcda(1), gcda(2))


def test_what_is_no_file_of_counts_is_told() -> None:
    with pytest.raises(InputError, match="ends in a record"):
        added(gcda(1, cut=3), gcda(1, cut=3))
    with pytest.raises(InputError, match=r"expected a \.gcda file"):
        added(b"gcda" * 8, b"gcda" * 8)


def test_lines_of_an_inlined_function_are_one() -> None:
    text = gcov_json((5, 0, [0, 0]), (5, 3, [0, 3]), (6, 0, []))
    assert read_gcov(text, Path("/linux/mm/pool.c")) == {5: Line(3, (0, 3)), 6: Line(0)}
    assert not read_gcov(text, Path("/linux/mm/other.c"))


def test_what_did_not_run_is_told_by_function() -> None:
    lines = {2: Line(4), 5: Line(4, (0, 4)), 6: Line(0), 7: Line(4, (0, 4)), 8: Line(4), 16: Line(0), 18: Line(0)}
    left, call = find_unrun("mm/pool.c", SOURCE, lines)
    assert list(told(left, SOURCE, lines)) == [
        "mm/pool.c huge_left: 1 of 5 lines not run, 1 with a way never taken",
        "      5  1 of  2  if (wanted > pool->free)",
        "      6   not run return -1;",
    ]
    assert list(told(call, SOURCE, lines)) == ["mm/pool.c shmget: never run, 2 lines"]


def test_a_function_that_ran_as_a_whole_and_one_that_knows_no_huge_pages_are_left_out() -> None:
    lines = {2: Line(4), 5: Line(4, (1, 3)), 6: Line(1), 8: Line(3), 11: Line(0), 13: Line(0)}
    assert not list(find_unrun("mm/pool.c", SOURCE, lines))


def test_counts_of_machines_add_up_until_the_kernel_is_built_anew(tmp_path: Path) -> None:
    counts, file = LineCounts(tmp_path), tmp_path / "counts" / "mm" / "hugetlb.gcda"
    (tmp_path / "built" / "mm").mkdir(parents=True)
    (tmp_path / "built" / "mm" / "hugetlb.gcno").touch()
    for machine in (gcda(1), gcda(2)):
        counts.take(Machine(machine))  # type: ignore[arg-type]
    assert file.read_bytes() == gcda(3)
    counts.take(Machine(gcda(5, stamp=b"bbbb")))  # type: ignore[arg-type]
    assert file.read_bytes() == gcda(5, stamp=b"bbbb")
    with pytest.raises(InputError, match=r"counts no lines of mm/hugetlb\.c"):
        counts.take(Machine(OSError(2, "No such file")))  # type: ignore[arg-type]


def test_a_report_without_counts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unrun_lines.main([str(tmp_path / "bzImage"), "--report"]) == 3
    assert "run cases first" in capsys.readouterr().err
