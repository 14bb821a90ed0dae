"""The kernel log in the forms in which it is met."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.kernel.log import (
    LogLine,
    huge_page_lines,
    parse_log,
    read_log,
    tells_of_trouble,
    unknown_parameters,
)
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.parameters import Parameter, parse_parameters

UNKNOWN = 'Unknown kernel command line parameters "{}", will be passed to user space.'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("<6>[    0.123456] text", LogLine(6, 0.123456, "text")),
        ("<30>[   12.000001] systemd[1]: text", LogLine(6, 12.000001, "systemd[1]: text")),
        ("<4>[    0.000000][    T0] text", LogLine(4, 0.0, "text")),
        ("<4>[    0.000000][   C12] text", LogLine(4, 0.0, "text")),
        ("<6>[    0.5]   node   0: [mem 0x0-0x1]", LogLine(6, 0.5, "  node   0: [mem 0x0-0x1]")),
        ("[    0.123] text\r", LogLine(None, 0.123, "text")),
        ("[    0.123456] host kernel: text", LogLine(None, 0.123456, "text")),
        ("Nov 21 09:08:12 host kernel: Linux version 6.1", LogLine(None, None, "Linux version 6.1")),
        ("Nov  1 09:08:12 host kernel: [    1.5] text", LogLine(None, 1.5, "text")),
        ("Linux version 6.1", LogLine(None, None, "Linux version 6.1")),
        ("<6>no time", LogLine(6, None, "no time")),
    ],
)
def test_forms(line: str, expected: LogLine) -> None:
    assert parse_log(f"{line}\n") == (expected,)


def test_no_log_is_empty() -> None:
    assert read_log(CapturedTree({})) == ()


def test_captured_log() -> None:
    assert read_log(CapturedTree({"dmesg": "<6>[    0.1] a\n\n<4>[    0.2] b\n"})) == (
        LogLine(6, 0.1, "a"),
        LogLine(4, 0.2, "b"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "HugeTLB: unsupported hugepagesz=3M",
        "hugetlb: Huge Page Reserved count may go negative.",
        "hugetlb_cma: reserved 64 MiB on node 0",
        "cma: Failed to reserve 64 MiB",
        "huge_memory: transparent_hugepage= cannot parse, ignored",
        "transparent_hugepage_shmem= cannot parse, ignored",
        "huge_memory: thp_anon=x: error parsing string, ignoring setting",
        "thp_shmem=x: error parsing string, ignoring setting",
        "huge_memory: hugetext= cannot parse, ignored",
        "khugepaged: raising min_free_kbytes from 1 to 2 to help transparent hugepage allocations",
        "Malformed early option 'hugetlb_cma'",
        "Booting kernel: `x' invalid for parameter `kvm.hpage'",
        UNKNOWN.format("a=b"),
        "Kernel command line: quiet",
        "swapper/0: page allocation failure: order:9",
        "Out of memory: Killed process 1 (init)",
        "BUG: unable to handle page fault",
        "kernel BUG at mm/hugetlb.c:1!",
        "WARNING: CPU: 0 PID: 1 at mm/page_alloc.c:1",
        "Oops: 0000 [#1] SMP",
        "Kernel panic - not syncing: Attempted to kill init!",
    ],
)
def test_lines_that_matter(text: str) -> None:
    line = LogLine(4, 0.0, text)
    assert huge_page_lines([LogLine(6, 0.0, "devtmpfs: initialized"), line]) == (line,)


@pytest.mark.parametrize("text", ["DEBUG: x", "Debugging on", "devtmpfs: initialized", "pci 0000:00:1f.0: x"])
def test_lines_that_do_not_matter(text: str) -> None:
    assert huge_page_lines([LogLine(4, 0.0, text)]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: CPU: 0 PID: 1 at mm/hugetlb.c:2910 hugetlb_init+0x1/0x2",
        "WARNING: CPU: 3 PID: 99 at arch/x86/mm/tlb.c:500 switch_mm_irqs_off+0x1/0x2",
        "WARNING: CPU: 0 PID: 1 at include/linux/huge_mm.h:10 remove_inode_hugepages+0x1/0x2",
        "WARNING: mm/hugetlb.c:1234 at hugetlb_init+0x1/0x2, CPU#0: swapper/0/1",
        "WARNING: fs/hugetlbfs/inode.c:600 at remove_inode_hugepages+0x1/0x2, CPU#1: rm/700",
        "WARNING: arch/arm64/mm/hugetlbpage.c:20 at huge_pte_clear+0x1/0x2, CPU#1: a.out/7",
        "WARNING: ./include/linux/page-flags.h:300 at folio_flags+0x1/0x2, CPU#0: khugepaged/30",
        "WARNING: [order > MAX_PAGE_ORDER] mm/page_alloc.c:5200 at alloc+0x1/0x2, CPU#0: at fs/x/1",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: Bad rss-counter state mm:00000000abcdef01 type:MM_ANONPAGES val:512",
        "kernel BUG at mm/hugetlb.c:1!",
        "Oops: 0000 [#1] SMP",
        "mm/pgtable-generic.c:51: bad pmd c00000007f800386.",
        "mm/pgtable-generic.c:29: bad p4d 00000000abcdef01(0000000000000067)",
        "Unable to handle kernel paging request at virtual address ffff000000000000",
    ],
)
def test_a_kernel_in_trouble(text: str) -> None:
    assert tells_of_trouble(text)


@pytest.mark.parametrize(
    "text",
    [
        "WARNING: CPU: 1 PID: 0 at arch/x86/kernel/smpboot.c:432 topology_sane.isra.0+0x6b/0x80",
        "WARNING: arch/x86/kernel/smpboot.c:432 at topology_sane.isra.0+0x6b/0x80, CPU#1: at mm/0",
        "WARNING: drivers/base/mm/x.c:1 at probe+0x1/0x2, CPU#1: swapper/1/0",
        "WARNING: CPU: 0 PID: 1 at include/linux/mmc/host.h:1 probe+0x1/0x2",
        "BUG: workqueue lockup - pool cpus=0 node=0 flags=0x0 nice=0 stuck for 31s!",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [swapper/0:1]",
        "Out of memory: Killed process 1 (init)",
        "DEBUG: x",
    ],
)
def test_what_emulation_and_want_of_time_bring_is_no_trouble(text: str) -> None:
    assert not tells_of_trouble(text)


def line_of(text: str) -> list[LogLine]:
    return [LogLine(5, 0.0, text)]


def test_unknown_parameters() -> None:
    assert unknown_parameters(line_of(UNKNOWN.format("word a=b c=d=e"))) == ["word", "a=b", "c=d=e"]


def test_no_unknown_parameters() -> None:
    assert unknown_parameters(line_of("Kernel command line: a=b")) == []


def test_value_with_spaces_is_known_from_the_command_line() -> None:
    command_line = parse_parameters('a="b c" x="b c d" quiet')
    lines = line_of(UNKNOWN.format("a=b c x=b c d"))
    assert unknown_parameters(lines, command_line) == ["a=b c", "x=b c d"]
    assert unknown_parameters(lines) == ["a=b", "c", "x=b", "c", "d"]


def test_value_with_quotes() -> None:
    assert unknown_parameters(line_of(UNKNOWN.format('a=b"c" d'))) == ['a=b"c"', "d"]


def test_record_that_was_too_long_loses_its_last_word() -> None:
    assert unknown_parameters(line_of('Unknown kernel command line parameters "a=b c=d e=cut o')) == [
        "a=b",
        "c=d",
        "e=cut",
    ]
    assert unknown_parameters(line_of('Unknown kernel command line parameters "a=cut')) == []


_WORDS = st.builds(
    Parameter,
    st.text(alphabet="abc", min_size=1, max_size=3),
    st.none() | st.text(alphabet='abc"=', max_size=4).filter(lambda value: not value.startswith('"')),
)


@given(st.lists(_WORDS, min_size=1))
def test_words_without_spaces_survive(words: list[Parameter]) -> None:
    texts = [str(word) for word in words]
    assert unknown_parameters(line_of(UNKNOWN.format(" ".join(texts))), words) == texts


@given(st.text() | st.from_regex(r"<[0-9]{1,3}>\[ {0,3}[0-9]{0,3}\.[0-9]{0,3}\] ?.{0,9}", fullmatch=True))
def test_every_text_is_a_log(text: str) -> None:
    lines = parse_log(text)
    assert set(huge_page_lines(lines)) <= set(lines)
    assert all(isinstance(word, str) for word in unknown_parameters(lines))


@given(st.text())
def test_every_text_after_the_start_of_the_line(text: str) -> None:
    lines = line_of(f'Unknown kernel command line parameters "{text}')
    assert all(unknown_parameters(lines, parse_parameters(text)))
