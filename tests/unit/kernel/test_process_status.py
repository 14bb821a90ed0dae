"""What a process is and how much memory it needs."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kernel.process_capture import CHILD, HOLDER, KTHREADD, processes, text_of

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.process_status import ProcessStatus, parse_process_status, read_process_status
from hugepage_qa.kernel.tree import CapturedTree, DirectoryTree
from hugepage_qa.sizes import GIB, KIB, MIB

THREAD = "Name:\tx\nState:\tS (sleeping)\nTgid:\t7\nPid:\t8\nPPid:\t2\nUid:\t1\t26\t1\t1\nThreads:\t3\n"


def parse(text: str) -> ProcessStatus:
    return parse_process_status(text, "proc/8/status")


def test_memory_of_a_real_process() -> None:
    status = read_process_status(processes(), HOLDER)
    assert status is not None
    assert (status.name, status.pid, status.threads) == ("ps_hold", HOLDER, 1)
    assert (status.page_tables, status.hugetlb_pages) == (72 * KIB, GIB + 8 * MIB)
    assert (status.sizes["RssAnon"], status.sizes["RssShmem"]) == (12388 * KIB, 8 * MIB)
    assert status.has_memory


def test_a_name_with_an_escape_sequence_a_newline_and_a_backslash() -> None:
    status = read_process_status(processes(), CHILD)
    assert status is not None
    assert status.name == "\x1b[31mchild\n\\"
    assert f"{status.name}\n" == text_of(f"proc/{CHILD}/comm")
    assert status.parent == HOLDER


def test_kernel_threads() -> None:
    status = read_process_status(processes(), KTHREADD)
    assert status is not None
    assert not status.has_memory
    assert (status.page_tables, status.hugetlb_pages) == (0, 0)


def test_what_has_ended_and_is_not_waited_for() -> None:
    status = parse(f"{THREAD.replace('S (sleeping)', 'Z (zombie)')}Kthread:\t0\n")
    assert not status.has_memory
    assert status.state == "Z (zombie)"


def test_users_and_threads() -> None:
    status = parse(THREAD)
    assert (status.effective_uid, status.pid, status.threads) == (26, 8, 3)


def test_this_process() -> None:
    status = read_process_status(DirectoryTree(Path("/")))
    assert status is not None
    assert (status.pid, status.parent, status.effective_uid) == (os.getpid(), os.getppid(), os.geteuid())
    assert status.page_tables > 0
    assert status.has_memory


def test_no_such_process() -> None:
    assert read_process_status(processes(), 1) is None
    assert read_process_status(CapturedTree({"proc/7/status": ""}), 7) is None


def test_later_lines_are_kept_if_they_have_a_unit() -> None:
    assert parse(f"{THREAD}NewMemory:\t   8 kB\nNewWords:\ta b\n").sizes == {"NewMemory": 8 * KIB}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{THREAD}VmPTE:\t many kB\n", 8),
        (f"{THREAD}VmPTE:\t 8\n", 8),
        (f"{THREAD}HugetlbPages:\t -8 kB\n", 8),
        (f"{THREAD}RssAnon:\t {'9' * 21} kB\n", 8),
        (f"{THREAD}Threads:\t1\n", 8),
        (f"{THREAD}no colon\n", 8),
        (f"{THREAD}\n", 8),
        (THREAD.replace("Pid:\t8", "Pid:\teight"), 4),
        (THREAD.replace("Threads:\t3", "Threads:\t"), 7),
        (THREAD.replace("1\t26\t1\t1", "1\t26"), 6),
        (THREAD.replace("State:\tS (sleeping)\n", ""), 7),
        ("Name:\tx\n", 2),
    ],
)
def test_malformed_line_is_named(text: str, line: int) -> None:
    with pytest.raises(InputError, match=rf"^/proc/8/status, line {line}: ") as error:
        parse(text)
    assert "\n" not in str(error.value)


@given(st.text() | st.from_regex(r"Name:\t.{0,5}\n(Vm\w{1,3}:\t[ 0-9]{1,4} kB\n){0,3}", fullmatch=True))
def test_nothing_but_input_error(text: str) -> None:
    for lines in (text, THREAD + text):
        try:
            parse(lines)
        except InputError as error:
            assert "\n" not in str(error)
