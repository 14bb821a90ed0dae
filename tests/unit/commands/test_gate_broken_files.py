"""Every file that the gate reads, broken in every way that can be thought of: one line or a verdict, no traceback.

What is broken beyond doubt has to be refused; of what is only odd nothing is asked but that it ends in order.
"""

import copy
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.gate.documents import document, measured
from tests.unit.gate.test_foreign_formats import FIO, LKP, MMTESTS, PGBENCH, PHORONIX, SYSBENCH
from tests.unit.gate.test_importers import GO, PYPERF

from hugepage_qa.commands.gate import gate
from hugepage_qa.errors import InputError

HYPERFINE = {"results": [{"command": "sleep 1", "times": [1.0, 1.1], "mean": 1.05}]}
SAMPLES = document(measured(6))
POLICY = "metrics:\n- {match: walk, margin: 1%, tail_margin: 5%}\n- {match: '*', gates: false}\n"
CSV = "value,metric,block,unit\n1.5,walk,1,s\n1.6,walk,1,s\n1.4,walk,2,s\n"

DOCUMENTS: Mapping[str, Any] = {
    "samples": SAMPLES,
    "fio": FIO,
    "hyperfine": HYPERFINE,
    "lkp": LKP,
    "mmtests": MMTESTS,
    "pyperf": PYPERF,
}
TEXTS: Mapping[str, str] = {
    **{name: json.dumps(one) for name, one in DOCUMENTS.items()},
    "csv": CSV,
    "go": GO,
    "pgbench": PGBENCH,
    "phoronix": PHORONIX,
    "policy": POLICY,
    "sysbench": SYSBENCH,
}

#: put in the place of any value of a document; a number of 400 digits is read as text, as Python would not read it
DEEP = "deep"
STRANGE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**399,
    1e308,
    "",
    "\0",
    "a\nb\r\tc",
    "\ud800",
    "../../etc/passwd",
    "x" * 100_000,
    [],
    {},
    [[]],
    {"": {"": 1}},
    DEEP,
    "\u0661",
    "NaN",
    "\ufeff",
)


def read(name: str, path: Path, good: Path) -> int:
    """Have the gate read ``path`` as a file called ``name``; 0 to 2, or 3 for one line."""
    words = {
        "samples": ["compare", str(path), "--against", str(good)],
        "policy": ["compare", str(good), "--against", str(good), "--policy", str(path)],
    }.get(name, ["import", name, str(path), "--fact", "arch=s390x", "--fact", "cpu_model=z15"])
    return run(words)


def run(words: list[str]) -> int:
    try:
        code = CliRunner().invoke(gate, words, catch_exceptions=False).exit_code
    except (InputError, OSError):
        # the command line makes one short line of either
        return 3
    assert code in (0, 1, 2)
    return code


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.json"
    path.write_text(json.dumps(document(measured(6, seed=5, day=40))))
    return path


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where values are; of lists the first alone."""
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(value: Any, at: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """Return a copy in which ``change`` was called with what holds ``at``, and its key."""
    whole = [copy.deepcopy(value)]
    inside: Any = whole
    for key in (0, *at)[:-1]:
        inside = inside[key]
    change(inside, (0, *at)[-1])
    return whole[0]


def put(new: Any, inside: Any, key: Any) -> None:
    inside[key] = new


def remove(inside: Any, key: Any) -> None:
    del inside[key]


def odd_documents(value: Any) -> Iterator[str]:
    for at in places(value):
        for strange in STRANGE:
            text = json.dumps(changed(value, at, partial(put, strange)))
            yield text.replace(json.dumps(DEEP), "[" * 900 + "]" * 900)
        if at:
            yield json.dumps(changed(value, at, remove))
    text = json.dumps(value)
    yield from (text.replace("1", number) for number in ("1e400", "-1e400", "1_0", "0x1", "01", "1" * 5000))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_value_of_a_document_replaced(tmp_path: Path, good: Path, name: str) -> None:
    path = tmp_path / "file"
    refused = 0
    for text in odd_documents(DOCUMENTS[name]):
        path.write_text(text, encoding="utf-8")
        refused += read(name, path, good) == 3
    assert refused > 20


def odd_contents(text: str) -> Iterator[bytes]:
    """Yield what may be all right, or not."""
    content = text.encode()
    yield content.replace(b"\n", b"\r\n")
    yield b"\xef\xbb\xbf" + content
    yield from (content[: len(content) * part // 12] for part in range(1, 12))
    yield from (content[:at] + b"\0" + content[at:] for at in (0, len(content) // 2, len(content)))
    yield content + content
    yield b"\n".join(reversed(content.splitlines()))
    yield from (text.replace("1", digits).encode() for digits in ("1e400", "-1", "9" * 400, "\u0661", "inf", "1_0", ""))
    yield text.replace(" ", "").encode()
    yield text.upper().encode()


def wrong_contents(text: str) -> Iterator[bytes]:
    """Yield what nobody can take for anything."""
    content = text.encode()
    yield b""
    yield b"\0" * 100
    yield b"\xff\xfe" + text.encode("utf-16-le")
    yield content[:1] + b"\xff" + content[1:]
    yield content[: len(content) // 2] + b"\xed\xa0\x80" + content[len(content) // 2 :]
    yield b"[" * 100_000
    yield b'{"a":' * 100_000
    yield b"null"
    yield b"<a>" * 5_000


@pytest.mark.parametrize("name", TEXTS)
def test_contents(tmp_path: Path, good: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(TEXTS[name].encode())
    assert read(name, path, good) != 3 or name == "policy"
    for content in odd_contents(TEXTS[name]):
        path.write_bytes(content)
        read(name, path, good)
    for content in wrong_contents(TEXTS[name]):
        path.write_bytes(content)
        assert read(name, path, good) == 3, content[:50]


def no_files(directory: Path) -> Iterator[Path]:
    """Yield what is there and no file."""
    (directory / "directory").mkdir()
    os.mkfifo(directory / "fifo")
    (directory / "loop").symlink_to("loop")
    (directory / "dangling").symlink_to("nowhere")
    yield from (directory / name for name in ("directory", "fifo", "loop", "dangling", "missing", "n" * 300))
    yield Path("/dev/null")
    yield Path("/dev/zero")


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_file(tmp_path: Path, good: Path, name: str) -> None:
    # whoever opened the fifo would wait for ever
    signal.alarm(120)
    try:
        for path in no_files(tmp_path):
            assert read(name, path, good) == 3, path
    finally:
        signal.alarm(0)


def test_two_keys_of_one_name(tmp_path: Path, good: Path) -> None:
    """At each place of a document."""
    for name, value in DOCUMENTS.items():
        text = json.dumps(value)
        for at in places(value):
            if at and isinstance(at[-1], str):
                key = json.dumps(at[-1])
                (tmp_path / "file").write_text(text.replace(f"{key}: ", f"{key}: 0, {key}: ", 1), encoding="utf-8")
                assert read(name, tmp_path / "file", good) == 3, (name, at)


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """Return the file of an accepted baseline."""
    accepted = tmp_path / "accepted.json"
    accepted.write_text(json.dumps(SAMPLES))
    assert run(["accept", str(accepted), "--reason", "x", "--baselines", str(tmp_path / "baselines")]) == 0
    (path,) = (tmp_path / "baselines").rglob("walk*.json")
    return path


def test_baselines(tmp_path: Path, good: Path, baseline: Path) -> None:
    words = ["compare", str(good), "--baselines", str(tmp_path / "baselines")]
    text = baseline.read_text()
    value = json.loads(text)
    assert run(words) in (0, 2)
    refused = 0
    for odd in (*odd_documents(value), *(one.decode("utf-8", "surrogateescape") for one in odd_contents(text))):
        baseline.write_text(odd, encoding="utf-8", errors="surrogateescape")
        refused += run(words) == 3
    assert refused > 100
    for content in wrong_contents(text):
        baseline.write_bytes(content)
        assert run(words) == 3
        assert run(["history", "walk", "--baselines", str(tmp_path / "baselines")]) == 3


def test_kept_runs(tmp_path: Path, good: Path, baseline: Path) -> None:
    words = ["history", "walk", "--baselines", str(tmp_path / "baselines")]
    assert run(["compare", str(good), "--baselines", str(tmp_path / "baselines")]) in (0, 2)
    kept = [path for path in (tmp_path / "baselines" / "history").rglob("*") if path.is_file()]
    assert kept
    assert run(words) == 0
    text = kept[0].read_text()
    for content in (*odd_contents(text), *wrong_contents(text)):
        kept[0].write_bytes(content)
        run(words)
    assert baseline.exists()
