"""What is said of the tests of other suites: none is forgotten, each case is one of ours, and the page counts them."""

import re
from pathlib import Path

import pytest

from hugepage_qa.catalogue.catalogued_tests import CataloguedTest
from hugepage_qa.catalogue.coverage import Kind, Peer, PeerTest, read_peer, read_peers, render_counts, render_tests
from hugepage_qa.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "docs" / "coverage"
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
PEERS = read_peers(FILES)
TESTS = [test for peer in PEERS for test in peer.tests.values()]
#: how many tests of huge pages each suite had when it was read
READ = {
    "LTP": 76,
    "libhugetlbfs": 51,
    "kernel selftests": 50,
    "tp-libvirt": 38,
    "tp-qemu": 28,
    "avocado-misc-tests": 16,
    "others": 10,
    "performance suites": 9,
    "CKI": 2,
}


def test_every_test_that_was_read_is_there() -> None:
    assert {peer.peer: len(peer.tests) for peer in PEERS} == READ


def test_every_case_that_is_named_is_one_of_ours(tests: list[CataloguedTest]) -> None:
    ours = {
        name
        for test in tests
        # without named cases a test is one case itself
        for name in ([entry.name for entry in test.entries] or [test.name])
    }
    assert {case for test in TESTS for case in test.cases} - ours == set()


def test_the_page_counts_what_the_files_say() -> None:
    """Lines that differ are copied from here."""
    assert "\n".join(render_counts(PEERS)) in PAGE
    covered, weaker, missing, left_out = (sum(test.kind is kind for test in TESTS) for kind in Kind)
    judged = f"Of the other {len(TESTS) - left_out}, {covered} are covered, {weaker} weaker and {missing} missing."
    assert f"Of {len(TESTS)} tests {left_out} are left out. {judged}" in " ".join(PAGE.split())


def test_the_page_has_the_table_of_each_suite() -> None:
    shown = re.findall(r"^```\{qa:coverage\} coverage/(\S+)$", PAGE, re.MULTILINE)
    assert sorted(shown) == sorted(file.name for file in FILES.iterdir())
    assert [read_peer(FILES / name).peer for name in shown] == [peer.peer for peer in PEERS]


@pytest.mark.parametrize("file", sorted(FILES.iterdir()), ids=lambda file: file.name)
def test_no_test_is_there_twice(file: Path) -> None:
    # a YAML parser keeps the last one of two that have one name
    names = re.findall(r"^  (\S.*):$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(names) == sorted(read_peer(file).tests)


def test_a_row_has_kind_cases_and_reason() -> None:
    peer = Peer(
        "peer",
        {
            "one_1": PeerTest("pages", cases=("pool/grow", "/tests/pool/random")),
            "two": PeerTest("more pages", cases=("pool/grow",), weaker="half | of them"),
            "three": PeerTest("other pages", missing="none"),
            "four": PeerTest("no pages", left_out="no matter"),
        },
    )
    assert list(render_tests(peer))[2:] == [
        "| one\\_1 | pages | covered | {qa:case}`pool/grow`, [`/tests/pool/random`](cases/pool.md#testspoolrandom) |",
        "| two | more pages | weaker | {qa:case}`pool/grow`: half \\| of them |",
        "| three | other pages | missing | none |",
        "| four | no pages | left out | no matter |",
    ]
    assert list(render_counts([peer]))[2:] == ["| peer | 4 | 1 | 1 | 1 | 1 |", "| all | 4 | 1 | 1 | 1 | 1 |"]


@pytest.mark.parametrize(
    "told",
    [
        "checks: pages",
        "cases: [pool/grow]",
        "{checks: pages, cases: []}",
        "{checks: pages, cases: [pool/grow], missing: half of it}",
        "{checks: pages, missing: half of it, left_out: the other half}",
        "{checks: pages, weaker: half of it}",
        "{checks: pages, missing: ' '}",
    ],
)
def test_a_test_of_no_kind_or_of_two_is_refused(told: str, tmp_path: Path) -> None:
    file = tmp_path / "peer.yaml"
    text = told if told.startswith("{") else f"{{{told}}}"
    file.write_text(f"peer: one\ntests: {{mine: {text}}}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"peer\.yaml: \['tests'\]\['mine'\]"):
        read_peer(file)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_peer(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("[", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read"):
        read_peer(tmp_path / "bad.yaml")
