"""Whatever is wrong with a file of others is told in one line, exit code 3: no traceback, no verdict."""

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.unit.gate.documents import MACHINE, document, measured

from hugepage_qa.commands.gate import gate
from hugepage_qa.errors import InputError

GOOD = document(measured(6))
TEXT = json.dumps(GOOD)


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def environment(**facts: Any) -> str:
    return json.dumps({**GOOD, "environment": {**MACHINE, **facts}})


SAMPLES = {
    "an environment nested 900 deep": TEXT.replace('"cores": 8', f'"cores": {nested(900)}'),
    "nested beyond the parser": TEXT.replace('"cores": 8', f'"cores": {nested(100_000)}'),
    "lists without end": "[" * 100_000,
    "half a surrogate pair as a metric": json.dumps(document(measured(6, metric="walk\ud800"))),
    "half a surrogate pair as a fact": environment(bios="\udfff"),
    "half a surrogate pair as a key": environment(**{"\ud800": 1}),
    "a sentinel beyond floating point": TEXT.replace('"order": 0', '"order": 0, "sentinel": 1e400'),
    "a fact beyond floating point": TEXT.replace('"cores": 8', '"cores": 1e999'),
    "a sample beyond floating point": TEXT.replace('"samples": [', '"samples": [1e999, '),
    "a key that is there twice": TEXT.replace('"cores": 8', '"cores": 8, "cores": 8'),
    "samples that are there twice": TEXT.replace('"samples": [', '"samples": [1.0], "samples": ['),
    "facts that get one key": environment(**{"a.b": 1, "a": {"b": 2}}),
    "a negative order": TEXT.replace('"order": 0', '"order": -1'),
    "an order that is no number": TEXT.replace('"order": 0', '"order": "first"'),
    "not a number": TEXT.replace('"samples": [', '"samples": [NaN, '),
    "nothing": "",
    "null": "null",
    "half of it": TEXT[: len(TEXT) // 2],
    "another format": TEXT.replace("hugepage-qa samples", "hugepage-qa other"),
    "a later version": TEXT.replace('"version": 1', '"version": 99'),
    "a version that is true": TEXT.replace('"version": 1', '"version": true'),
    "a metric that is a path": json.dumps(document(measured(6, metric="/etc/passwd"))),
    "a metric with a line end behind it": json.dumps(document(measured(6, metric="walk\n"))),
    "an arch with a line end behind it": environment(arch="x86_64\n"),
    "a unit of two lines": json.dumps(document(measured(6, unit="s\nx"))),
    "an order beyond floating point": TEXT.replace('"order": 0', f'"order": {10**400}'),
    "an order that no session has": TEXT.replace('"order": 0', '"order": 1e300'),
    "a metric of two lines": json.dumps(document(measured(6, metric="a\nb"))),
    "the same as a number": json.dumps(document(measured(6, same_as=7))),
    "a time of no calendar": TEXT.replace("2026-01-01", "2026-13-41"),
    "no samples": json.dumps(document({**measured(1), "blocks": [{"order": 0, "samples": []}]})),
}


@pytest.mark.parametrize("what", SAMPLES)
@pytest.mark.parametrize("words", ["compare FILE --against GOOD", "accept FILE --reason x", "plan FILE", "table FILE"])
def test_samples(tmp_path: Path, what: str, words: str) -> None:
    (tmp_path / "bad.json").write_text(SAMPLES[what])
    (tmp_path / "good.json").write_text(json.dumps(document(measured(6, seed=5, day=40))))
    places = {"FILE": tmp_path / "bad.json", "GOOD": tmp_path / "good.json"}
    arguments = [str(places.get(word, word)) for word in words.split()]
    if words.startswith("accept"):
        arguments += ["--baselines", str(tmp_path / "baselines")]
    assert_one_line(arguments)
    assert not (tmp_path / "baselines").exists()


POLICIES = {
    "lists without end": "metrics: " + "[" * 5000 + "]" * 5000,
    "maps without end": "metrics: " + "{a: " * 5000 + "1" + "}" * 5000,
    "aliases that grow": "\n".join(
        ["a0: &b0 [x, x]", *(f"a{i}: &b{i} [*b{i - 1}, *b{i - 1}]" for i in range(1, 40)), "metrics: *b39"]
    ),
    "a number beyond floating point": "metrics: [{match: a, absolute: .inf}]",
    "no number": "metrics: [{match: a, absolute: .nan}]",
    "no map": "metrics",
    "a tab": "metrics:\n\t- 1",
    "a key that is there twice": "metrics: []\nmetrics: []",
    "a rule with a margin twice": "metrics: [{match: a, margin: 1%, margin: 2%}]",
    "a number of 400 digits": f"metrics: [{{match: a, absolute: {10**400}}}]",
    "a share of nothing": "metrics: [{match: a, margin: 0.0000000001%}]",
    "a share of digits with underscores": "metrics: [{match: a, margin: 1_0%}]",
}


@pytest.mark.parametrize("what", POLICIES)
def test_policies(tmp_path: Path, what: str) -> None:
    (tmp_path / "policy.yaml").write_text(POLICIES[what])
    (tmp_path / "old.json").write_text(TEXT)
    (tmp_path / "new.json").write_text(json.dumps(document(measured(3, seed=5, day=40))))
    names = ("new.json", "--against", "old.json", "--policy", "policy.yaml")
    assert_one_line(["compare", *(str(tmp_path / name) if "." in name else name for name in names)])


LINES = {
    "digits with underscores": "value\n1_000\n",
    "digits of another script": "value\n\u0661\u0662\n",
    "infinity": "value\ninf\n",
    "nothing": "value\n\n",
    "an unknown column": "value,colour\n1,red\n",
    "no value": "block\n1\n",
}


@pytest.mark.parametrize("what", LINES)
def test_lines(tmp_path: Path, what: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(LINES[what], encoding="utf-8")
    assert_one_line(["import", "csv", str(path), "--fact", "arch=x86_64", "--fact", "cpu_model=any"])


def test_words_that_nobody_could_write_down(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(TEXT)
    for option in ("--by", "--release", "--reason"):
        words = ["accept", str(path), "--baselines", str(tmp_path / "b"), "--reason", "x", option, "a\udcff"]
        assert_one_line(words)


#: what is left out of the words is a file with good samples
PLANS = (
    "--between 1%",
    "--within 1%",
    "--between 1e-320% --within 1%",
    "--between 1% --within 1e-320%",
    "--between \u0661% --within 1%",
    "--between nan% --within 1%",
    "FILE --change 1e-300%",
    "FILE --change 0%",
    f"FILE --runs {10**400}",
    "FILE --runs 0",
    "FILE --block-cost nan",
    "FILE --block-cost inf",
    "FILE --block-cost -1",
    "FILE --run-cost nan",
    "FILE --run-cost inf",
    "FILE --run-cost 0",
    "FILE --run-cost 1e-320 --block-cost 1e300",
)


@pytest.mark.parametrize("words", PLANS)
def test_plans(tmp_path: Path, words: str) -> None:
    path = tmp_path / "pilot.json"
    path.write_text(TEXT)
    assert_one_line(["plan", *(str(path) if word == "FILE" else word for word in words.split())])


@pytest.mark.parametrize("option", ["--reason", "--by", "--release", "--acknowledge"])
def test_acceptances_by_nobody(tmp_path: Path, option: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(TEXT)
    words = ["accept", str(path), "--baselines", str(tmp_path / "b"), "--reason", "x", "--metric", "walk"]
    assert_one_line([*words, option, " "])
    assert not (tmp_path / "b").exists()


def test_an_age_beyond_the_calendar(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(TEXT)
    assert_one_line(["compare", str(tmp_path / "old.json"), "--baselines", str(tmp_path), "--max-age", "9" * 20])


@pytest.mark.parametrize(
    ("name", "words"), [("walk copy.json", "compare"), ("run.json", "compare"), ("run.json", "accept --reason x")]
)
def test_a_baseline_under_another_name(tmp_path: Path, name: str, words: str) -> None:
    for file, *series in (("old", measured(6)), ("new", measured(3, seed=5, day=40, metric="run"))):
        (tmp_path / file).write_text(json.dumps(document(*series)))
    old, new, baselines = (str(tmp_path / one) for one in ("old", "new", "baselines"))
    assert CliRunner().invoke(gate, ["accept", old, "--baselines", baselines, "--reason", "x"]).exit_code == 0
    (found,) = (tmp_path / "baselines").rglob("walk.json")
    found.rename(found.with_name(name))
    assert_one_line([*words.split(), new, "--baselines", baselines])


def test_a_baseline_that_is_a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(TEXT)
    words = ["accept", str(tmp_path / "old.json"), "--baselines", str(tmp_path / "B"), "--reason", "x"]
    assert CliRunner().invoke(gate, words).exit_code == 0
    (found,) = (tmp_path / "B").rglob("walk.json")
    found.unlink()
    found.symlink_to("nowhere")
    assert_one_line(words)


@pytest.mark.parametrize("kind", ["a FIFO", "a link to a file", "a link to nothing", "a directory"])
@pytest.mark.parametrize("words", ["import csv FILE --output", "compare FILE --against FILE --html"])
def test_an_output_that_is_no_file(tmp_path: Path, kind: str, words: str) -> None:
    """It would become one: what is written is renamed to it."""
    path, file = tmp_path / "output", tmp_path / "runs.csv"
    file.write_text("value\n1\n")
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to("runs.csv" if kind == "a link to a file" else "nowhere")
    mode = path.lstat().st_mode
    message = assert_one_line([*(str(file) if word == "FILE" else word for word in words.split()), str(path)])
    assert "is no regular file" in message
    assert path.lstat().st_mode == mode


def assert_one_line(words: list[str]) -> str:
    """Run a command of the gate, which has to end with one line, and return it; main makes the exit code 3 of it."""
    with pytest.raises((InputError, click.ClickException)) as raised:
        gate.main(words, standalone_mode=False)
    error = raised.value
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert len(message.splitlines()) == 1
    return message
