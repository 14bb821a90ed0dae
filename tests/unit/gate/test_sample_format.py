"""The neutral format: what is read, and what never becomes a verdict."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.gate.documents import MACHINE, document, measured, series_of

from hugepage_gate.input_file import LARGEST_FILE
from hugepage_gate.sample_files import read_one_machine, read_samples
from hugepage_gate.sample_format import format_samples, parse_samples
from hugepage_qa.errors import InputError

Change = Callable[[dict[str, Any]], object]


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def block(content: dict[str, Any]) -> dict[str, Any]:
    """Return the first block of a document."""
    found: dict[str, Any] = content["series"][0]["blocks"][0]
    return found


def repeat_block(content: dict[str, Any]) -> None:
    content["series"][0]["blocks"].append(copy.deepcopy(block(content)))


def repeat_samples(content: dict[str, Any]) -> None:
    content["series"] = [measured(1)]
    content["series"][0]["blocks"].append({**copy.deepcopy(block(content)), "started": "2026-03-01"})


def mix_units(content: dict[str, Any]) -> None:
    content["series"].append({**series_of([[1.0]]), "unit": "ms", "configuration": "shp"})
    content["reference"] = ""


WRONG: dict[str, tuple[Change, str]] = {
    "negative": (lambda one: block(one).update(samples=[1.0, -1.0]), "negative"),
    "boolean": (lambda one: block(one).update(samples=[1.0, True]), "bool"),
    "text": (lambda one: block(one).update(samples=["1.0"]), "str"),
    "too large": (lambda one: block(one).update(samples=[10**400]), "too large"),
    "empty block": (lambda one: block(one).update(samples=[]), "samples"),
    "no samples": (lambda one: block(one).pop("samples"), "samples"),
    "no blocks": (lambda one: one["series"][0].update(blocks=[]), "blocks"),
    "no series": (lambda one: one.update(series=[]), "series"),
    "mixed units": (mix_units, "expected one unit"),
    "wrong direction": (lambda one: one["series"][0].update(direction="higher"), "direction"),
    "unknown direction": (lambda one: one["series"][0].update(direction="up"), "up"),
    "equal times": (lambda one: one["series"][0].update(direction="equal"), "equal"),
    "rate that is better low": (lambda one: one["series"][0].update(unit="tps"), "tps"),
    "bits that are better few": (lambda one: one["series"][0].update(unit="bit/s"), "bit/s"),
    "duplicate block": (repeat_block, "twice"),
    "duplicate samples": (repeat_samples, "twice"),
    "future version": (lambda one: one.update(version=2), "version 2"),
    "no version": (lambda one: one.pop("version"), "version"),
    "other format": (lambda one: one.update(format="pyperf"), "hugepage-qa samples"),
    "no CPU model": (lambda one: one.update(environment={"arch": "x86_64"}), "cpu_model"),
    "no environment": (lambda one: one.pop("environment"), "environment"),
    "path as architecture": (lambda one: one.update(environment={**MACHINE, "arch": "../x"}), "../x"),
    "no time": (lambda one: block(one).update(started="yesterday"), "yesterday"),
    "unknown key": (lambda one: block(one).update(sample=[1]), "sample"),
    "unknown reference": (lambda one: one.update(reference="thp"), "thp"),
    "sentinel of 0": (lambda one: block(one).update(sentinel=0), "sentinel"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_documents_are_one_line(tmp_path: Path, case: str) -> None:
    change, named = WRONG[case]
    content = copy.deepcopy(document())
    change(content)
    path = write(tmp_path / "new.json", content)
    with pytest.raises(InputError) as raised:
        read_samples([path])
    assert str(path) in str(raised.value)
    assert named in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        (json.dumps(document()).replace("1.1", "1e999"), "infinite"),
        (json.dumps(document())[:-20], "truncated"),
        ("", "truncated"),
        ("[" * 100_000, "JSON"),
        ("[]", "JSON object"),
        ("\ud800".encode("utf-8", "surrogatepass"), "UTF-8"),
    ],
)
def test_wrong_text_is_one_line(tmp_path: Path, text: str | bytes, named: str) -> None:
    path = tmp_path / "new.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=named):
        read_samples([path])


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new.json"
    with path.open("wb") as stream:
        stream.truncate(1 << 30)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(InputError, match="256M"):
        read_samples([path])
    assert LARGEST_FILE < 1 << 30


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        read_samples([tmp_path])
    with pytest.raises(InputError, match="No such file"):
        read_samples([tmp_path / "none"])


def test_samples_can_be_written_and_read_again(tmp_path: Path) -> None:
    content = document(
        measured(3, configuration="shp", block={"sentinel": 1.5, "host": "a", "session": "s", "warmup": True}),
        measured(3, seed=2, configuration="thp"),
        reference="thp",
        subject={"kernel": "6.12"},
        environment={**MACHINE, "memory": {"nodes": 2}},
    )
    for place, one in enumerate(content["series"][0]["blocks"]):
        one["order"] = place
    samples = parse_samples(content, "a")
    again = read_samples([write(tmp_path / "again.json", format_samples(samples))])
    assert format_samples(again) == format_samples(samples)
    assert again.environment["memory.nodes"] == 2
    assert again.series[0].blocks[0].warmup


def test_a_document_about_one_metric_needs_no_series() -> None:
    one = document()["series"][0]
    head = {key: value for key, value in document().items() if key != "series"}
    samples = parse_samples({**head, **one}, "short")
    assert format_samples(samples) == format_samples(parse_samples(document(), "long"))


def test_files_of_several_sessions_are_joined_in_time(tmp_path: Path) -> None:
    later = write(
        tmp_path / "later.json", document(measured(1, seed=2, day=9), environment={**MACHINE, "hostname": "b"})
    )
    first = write(tmp_path / "first.json", document(measured(2), environment={**MACHINE, "hostname": "a"}))
    samples = read_samples([later, first])
    assert [block.boot for block in samples.series[0].blocks] == ["boot0", "boot1", "boot9"]
    assert samples.hosts == {"a", "b"}


def test_blocks_are_taken_in_the_order_of_their_time(tmp_path: Path) -> None:
    content = document(measured(4))
    content["series"][0]["blocks"].reverse()
    samples = read_samples([write(tmp_path / "one.json", content)])
    assert [block.boot for block in samples.series[0].blocks] == ["boot0", "boot1", "boot2", "boot3"]


def test_files_about_different_subjects_are_not_joined(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", document(measured(1)))
    other = write(tmp_path / "other.json", document(measured(1, seed=2, day=5), subject={"kernel": "6.13"}))
    with pytest.raises(InputError, match="separately"):
        read_samples([one, other])


def test_files_of_different_machines_are_mixed(tmp_path: Path) -> None:
    one = write(tmp_path / "one.json", document(measured(1)))
    other = write(
        tmp_path / "other.json", document(measured(1, seed=2, day=5), environment={**MACHINE, "cpu_model": "z15"})
    )
    assert read_samples([one, other]).mixed == {"cpu_model"}
    with pytest.raises(InputError, match="cpu_model differ"):
        read_one_machine([one, other])


def test_a_coarse_clock_may_show_the_same_samples_twice() -> None:
    coarse = series_of([[1.1, 1.2, 1.1, 1.3], [1.1, 1.2, 1.1, 1.3], [7.0], [7.0]])
    assert len(parse_samples(document(coarse), "coarse").series[0].blocks) == 4


def test_another_boot_of_an_emulator_may_count_the_same() -> None:
    content = document(measured(1))
    content["series"][0]["blocks"].append({**block(content), "order": 1, "started": "2026-03-01", "boot": "another"})
    of_no_boot = copy.deepcopy(content)
    of_no_boot["series"][0]["blocks"][1].pop("boot")
    assert len(parse_samples(content, "emulated").series[0].blocks) == 2
    with pytest.raises(InputError, match="block 1 is there twice"):
        parse_samples(of_no_boot, "emulated")


def test_two_configurations_need_a_reference() -> None:
    with pytest.raises(InputError, match="reference"):
        parse_samples(document(measured(1, configuration="shp"), measured(1, seed=2, configuration="thp")), "two")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_whatever_stands_in_a_document_it_is_read_or_refused(data: st.DataObject) -> None:
    content: Any = copy.deepcopy(document(series_of([[1.0, 2.0, 3.0], [1.5, 2.5]])))
    owner = content
    while True:
        key = data.draw(st.sampled_from(sorted(owner) if isinstance(owner, dict) else list(range(len(owner)))))
        if not isinstance(owner[key], (dict, list)) or not owner[key] or data.draw(st.booleans()):
            break
        owner = owner[key]
    owner[key] = data.draw(JSON)
    try:
        parse_samples(content, "drawn")
    except InputError as error:
        assert len(str(error).splitlines()) == 1
