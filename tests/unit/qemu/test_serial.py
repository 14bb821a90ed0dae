"""A serial log is validated, never trusted."""

import json

import pytest

from hugepage_qa.qemu.probe_machine import GarbledCapture, parse_capture


def record(path: str, text: str) -> str:
    return "@hugepage-qa " + json.dumps({"path": path, "text": text})


def log(*lines: str, end: str = "\n") -> str:
    return "".join(line + end for line in lines)


END_OF_ONE = '@hugepage-qa {"end":1}'
CMDLINE = record("proc/cmdline", 'foo="a\tb\\c"\n')


def test_files_are_found_between_firmware_and_kernel_noise() -> None:
    text = log(
        "\x1bc\x1b[?7l\x1b[2JSeaBIOS (version 1.16)\x1b[0m",
        "[    0.0] Command line: @hugepage-qa {",
        "",
        CMDLINE,
        END_OF_ONE,
        "[    2.0] reboot: Power down",
        end="\r\n",
    )
    assert parse_capture(text).files == {"proc/cmdline": 'foo="a\tb\\c"\n'}


def test_terminal_codes_right_before_a_record_do_not_hide_it() -> None:
    assert parse_capture(log("\x1b[?7l" + CMDLINE, END_OF_ONE)).read("proc/cmdline")


def test_directories_are_seen_through_their_files() -> None:
    lines = [record(f"sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages", "0\n") for size in (2048, 1048576)]
    tree = parse_capture(log(*lines, '@hugepage-qa {"end":2}'))
    assert tree.names("sys/kernel/mm/hugepages") == ["hugepages-1048576kB", "hugepages-2048kB"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no end marker after 0 files"),
        (log(CMDLINE), "no end marker after 1 files"),
        (log(CMDLINE, '@hugepage-qa {"end":2}'), "end marker .* after 1 files"),
        (log('@hugepage-qa {"end":0}'), "end marker .* after 0 files"),
        (log(CMDLINE, CMDLINE, '@hugepage-qa {"end":2}'), "printed twice"),
        (log(CMDLINE[:-5], END_OF_ONE), "not JSON"),
        (log(CMDLINE[:30] + "\n[ 1.0] BUG: soft lockup\n" + CMDLINE[30:], END_OF_ONE), "not JSON"),
        (log("@hugepage-qa [1]", END_OF_ONE), "not an object"),
        (log('@hugepage-qa {"path":"a","text":5}', END_OF_ONE), "expected a path and a text"),
        (log('@hugepage-qa {"path":"a","text":"","more":1}', END_OF_ONE), "expected a path and a text"),
        (log(record("/etc/passwd", "x"), END_OF_ONE), "relative path"),
        (log(record("proc/../x", "x"), END_OF_ONE), "relative path"),
        (log(CMDLINE, END_OF_ONE, CMDLINE), "follows the end marker"),
    ],
)
def test_broken_capture_is_refused(text: str, reason: str) -> None:
    with pytest.raises(GarbledCapture, match=reason):
        parse_capture(text)
