"""The text of baselines: what git makes of it, and what is noticed."""

import hashlib
import json
import lzma
import shutil
import subprocess
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from tests.unit.gate.documents import MACHINE, measured, sample_set

from hugepage_gate.accept import Request, accept, write
from hugepage_gate.baseline_file import format_baseline, parse_baseline
from hugepage_gate.baseline_store import BaselineStore, file_name, read_baseline, store_samples
from hugepage_gate.gate_policy import Policy
from hugepage_gate.samples import SampleSet
from hugepage_qa.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
REQUEST = Request("somebody", "first baseline", "10", date(2026, 2, 1))
GIT = shutil.which("git") or "git"


def accepted(root: Path, samples: SampleSet, request: Request = REQUEST) -> Path:
    """Accept ``samples`` into ``root`` and return the file of the first metric."""
    store = BaselineStore(root)
    return next(iter(write(store, accept(store, samples, request, Policy()), samples, request, None)))


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A baseline of ten blocks."""
    return accepted(tmp_path / "baselines", sample_set(measured(10)))


def test_a_baseline_is_written_and_read_again(baseline: Path) -> None:
    text = baseline.read_text()
    assert format_baseline(parse_baseline(text, baseline)) == text
    assert json.loads(text)["metric"] == "walk"
    assert baseline.parts[-4] == "x86_64"
    keys = [line.split('"')[1] for line in text.splitlines() if line.startswith('"')]
    assert keys == sorted(keys)


def test_a_baseline_of_blocks_without_a_sentinel_after_them_is_as_it_was_before_there_was_one(tmp_path: Path) -> None:
    plain = accepted(tmp_path / "plain", sample_set(measured(10))).read_text()
    assert "sentinel_after" not in plain
    text = accepted(tmp_path / "both", sample_set(measured(10, block={"sentinel_after": 0.25}))).read_text()
    blocks = parse_baseline(text, "both").current.blocks
    assert [block.sentinel_after for block in blocks] == [0.25] * 10
    assert format_baseline(parse_baseline(text, "both")) == text


def test_a_block_is_one_line_of_some_400_bytes(baseline: Path) -> None:
    lines = [line for line in baseline.read_text().splitlines() if '"location"' in line]
    assert len(lines) == 10
    assert max(map(len, lines)) < 450


def test_accepting_a_block_adds_two_lines_and_changes_none(baseline: Path, tmp_path: Path) -> None:
    before = baseline.read_text().splitlines()
    accepted(tmp_path / "baselines", sample_set(measured(1, 0.0, 2, day=20)))
    after = baseline.read_text().splitlines()
    assert [line for line in before if line not in after] == []
    assert len(after) == len(before) + 2


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('"cores": 8', '"cores": 9', "env_id"),
        ('"version": 2', '"version": 7', "version 7"),
        ('"version": 2', '"version": 1', "accept a new baseline"),
        ('"format": "hugepage-qa baseline"', '"format": "x"', "hugepage-qa baseline"),
        ("null\n]", "null\n", "truncated"),
        ('"direction": "lower"', '"direction": "up"', "up"),
        ("null\n]", '{"location": 1}\n]', "gate accept"),
        ("null\n]", "7\n]", "gate accept"),
        ('"spread": 0', '"spread": -1', "gate accept"),
        ('"samples": 20', '"samples": "many"', "gate accept"),
    ],
)
def test_a_damaged_baseline_is_noticed(baseline: Path, old: str, new: str, named: str) -> None:
    text = baseline.read_text()
    assert old in text
    baseline.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=named) as raised:
        read_baseline(baseline)
    assert str(baseline) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_line_that_was_removed_or_copied_is_noticed(baseline: Path, tmp_path: Path) -> None:
    lines = baseline.read_text().splitlines()
    block = next(line for line in lines if '"location"' in line)
    for changed in (
        [line for line in lines if line != block],
        [*lines[: lines.index(block)], block, *lines[lines.index(block) :]],
    ):
        baseline.write_text("\n".join(changed))
        with pytest.raises(InputError, match="restore"):
            read_baseline(baseline)
    other = accepted(tmp_path / "baselines", sample_set(measured(10, seed=3, metric="other")))
    foreign = next(line for line in other.read_text().splitlines() if '"location"' in line)
    baseline.write_text("\n".join(lines).replace(block, foreign))
    with pytest.raises(InputError, match="never accepted"):
        read_baseline(baseline)


def test_a_link_is_no_baseline(baseline: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.json"
    baseline.rename(target)
    baseline.symlink_to(target)
    with pytest.raises(InputError, match="link"):
        read_baseline(baseline)


def test_a_metric_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    samples = sample_set(measured(10, metric="x.ack"))
    accepted(tmp_path, samples)
    assert ("x.ack", "") in BaselineStore(tmp_path).baseline_for(samples).series


def branches(baseline: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return the baseline, and how it looks on two branches that each accepted a block."""
    texts = []
    original = baseline.read_text()
    for seed in (2, 3):
        accepted(tmp_path / "baselines", sample_set(measured(1, 0.0, seed, day=18 + seed)))
        texts.append(baseline.read_text())
        baseline.write_text(original)
    paths = tuple(tmp_path / name for name in ("ours", "base", "theirs"))
    for path, text in zip(paths, (texts[0], original, texts[1]), strict=True):
        path.write_text(text)
    return paths[0], paths[1], paths[2]


def test_git_merges_what_two_branches_appended(baseline: Path, tmp_path: Path) -> None:
    ours, base, theirs = branches(baseline, tmp_path)
    subprocess.run([GIT, "merge-file", "--union", ours, base, theirs], check=True)
    merged = parse_baseline(ours.read_text(), ours)
    assert len(merged.current.blocks) == 12
    assert len(merged.acceptances) == 3


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an archive of the sources, no repository")
def test_attributes_of_the_repository_say_how_to_merge_baselines() -> None:
    command = [GIT, "check-attr", "merge", "baselines/x86_64/0/memory/walk.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("merge: union")


def test_a_merge_without_union_is_noticed(baseline: Path, tmp_path: Path) -> None:
    ours, base, theirs = branches(baseline, tmp_path)
    assert subprocess.run([GIT, "merge-file", ours, base, theirs], check=False, capture_output=True).returncode == 2
    with pytest.raises(InputError, match="merge"):
        read_baseline(ours)


def test_names_of_files_are_safe_and_different() -> None:
    names = [file_name(name) for name in ("a/b", "a:b", "../../etc", "", ".hidden", "plain-1.2", "x" * 300)]
    assert len(set(names)) == len(names)
    assert not any("/" in name or name.startswith(".") for name in names)
    assert file_name("plain-1.2") == "plain-1.2"


def test_the_most_alike_machine_is_compared_where_there_is_no_baseline(baseline: Path, tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "baselines")
    other = sample_set(measured(1, seed=5), environment={**MACHINE, "cpu_model": "Xeon 8124M"})
    assert store.baseline_for(other).environment["cpu_model"] == "Xeon 8275CL"
    assert baseline.exists()
    with pytest.raises(InputError, match="no baseline of suite build"):
        store.baseline_for(sample_set(measured(1, seed=5), suite="build"))


def test_blocks_are_found_by_metric(baseline: Path, tmp_path: Path) -> None:
    store = BaselineStore(tmp_path / "baselines")
    assert [path for path, _ in store.search("wal")] == [baseline]
    assert list(store.search("none")) == []


def test_raw_samples_are_kept_by_their_digest(tmp_path: Path) -> None:
    samples = np.random.default_rng(1).normal(10, 1, 1000)
    path = store_samples(tmp_path / "raw", samples)
    content = lzma.decompress(path.read_bytes())
    assert path.name == f"{hashlib.sha256(content).hexdigest()}.f64.xz"
    assert (np.frombuffer(content, dtype="<f8") == samples).all()
