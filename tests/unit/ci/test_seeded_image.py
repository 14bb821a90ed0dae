"""What is known of a seeded kernel: the faults that it was built with, and what was measured on it."""

from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from ci.seeded_kernel import detection, seeded_image
from ci.seeded_kernel.detection import Measured
from ci.seeded_kernel.faults import EditOfVersions, Fault, Proof
from ci.seeded_kernel.proofs import Kept, Seen, Shown
from ci.seeded_kernel.seeded_image import SeededImage

from hugepage_qa.cache import held_alone
from hugepage_qa.cases.result import ExitCode, Result, Verdict
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.kernel_image import KernelImage

EDIT = EditOfVersions(("mm/pool.c",), ("grow",), "count - SEEDED", instead="count")
FAULT = Fault("one-page-fewer", "the pool has one page fewer", ("pool/pool",), (EDIT,), Proof("pool(4);"), area="pool")
OTHER = Fault("one-page-more", "the pool has one page more", ("pool/pool",), (EDIT,), Proof("pool(5);"), area="pool")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeededImage:
    """Return an image that has both faults."""
    kernel = KernelImage(tmp_path / "bzImage", "x86_64", "6.1.9-seeded", None)
    monkeypatch.setattr(seeded_image, "identify", lambda _path: kernel)
    image = SeededImage(tmp_path / "bzImage")
    image.note([FAULT, OTHER])
    return image


def changed(fault: Fault) -> Fault:
    edit = EditOfVersions(("mm/pool.c",), ("grow",), "count + SEEDED", instead="count")
    return Fault(fault.name, fault.breaks, fault.found_in, (edit,), fault.proof, area=fault.area)


def test_an_image_has_the_faults_that_it_was_built_with(image: SeededImage) -> None:
    assert image.choose([FAULT, OTHER]) == [FAULT, OTHER]
    with pytest.raises(InputError, match="one-page-fewer is not in it as it is described"):
        image.choose([changed(FAULT)])
    image.path.with_name("faults.json").unlink()
    with pytest.raises(InputError, match="make seeded-kernel"):
        image.choose([OTHER])


def test_a_fault_that_a_version_cannot_have_is_left_out(image: SeededImage) -> None:
    absent = Fault("none", "nothing at all", ("pool/pool",), (EDIT,), Proof("pool(1);"), {"6.1": "there are no pools"})
    assert image.choose([absent, OTHER]) == [OTHER]


def test_what_is_live_is_kept_until_fault_proof_or_kernel_change(image: SeededImage) -> None:
    Kept(image).keep(FAULT, Seen(Shown.LIVE, "4", "3"))
    Kept(image).keep(OTHER, Seen(Shown.NOT_LIVE, "4", "4"))
    kept = Kept(image)
    assert kept.is_live(FAULT)
    assert not kept.is_live(OTHER)
    assert not kept.is_live(changed(FAULT))
    another = Fault(FAULT.name, FAULT.breaks, FAULT.found_in, FAULT.edits, Proof("pool(6);"), area=FAULT.area)
    assert not kept.is_live(another)
    image.path.with_name("config").write_text("CONFIG_HUGETLBFS=y\n", encoding="utf-8")
    assert not Kept(image).is_live(FAULT)


class Runs:
    """Stands for machines: all cases pass on the healthy kernel, and one fails with the fault."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, _image: Path, name: str, _areas: Sequence[str], _machines: int) -> Generator[Result, None, None]:
        self.asked.append(name)
        found = Verdict.FAIL if name == FAULT.name else Verdict.PASS
        yield Result("/pool/broken/2M", Verdict.FAIL)
        yield Result("/pool/resize/2M", found, ("2 pages",))
        yield Result("/pool/alone/2M", Verdict.PASS)


WANTED = {
    "none": ("none", ("pool/pool",)),
    FAULT.name: (FAULT.digest, FAULT.found_in),
    OTHER.name: (OTHER.digest, OTHER.found_in),
}


def test_a_case_finds_what_it_does_not_find_on_the_healthy_kernel(
    image: SeededImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "_run", Runs())
    measured = Measured(image)
    measured.measure(WANTED, 1)
    outcomes = [measured.outcome(fault) for fault in (FAULT, OTHER)]
    assert [outcome.found_by for outcome in outcomes if outcome] == [("/pool/resize/2M",), ()]
    assert measured.silent_cases([FAULT, OTHER]) == ("/pool/alone/2M",)


def test_only_what_has_changed_is_measured_again(image: SeededImage, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(detection, "_run", runs)
    Measured(image).measure(WANTED, 1)
    assert runs.asked == ["none", FAULT.name, OTHER.name]
    Measured(image).measure(WANTED, 1)
    Measured(image).measure(WANTED | {FAULT.name: (changed(FAULT).digest, FAULT.found_in)}, 1)
    assert runs.asked == ["none", FAULT.name, OTHER.name, FAULT.name]
    monkeypatch.setattr(detection, "_cases", lambda _area: "changed")
    Measured(image).measure({OTHER.name: WANTED[OTHER.name]}, 1)
    assert runs.asked[4:] == [OTHER.name]


def test_two_measurements_do_not_write_one_file(
    image: SeededImage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(detection, "_run", lambda *_: pytest.fail("it went on"))
    monkeypatch.setattr(detection, "read_faults", lambda: (FAULT, OTHER))
    with held_alone(image.path.parent, "build"):
        assert detection.main([str(image.path)]) == ExitCode.BROKEN
    assert "another build or measurement is under way" in capsys.readouterr().err


def test_nothing_is_found_by_cases_that_have_changed_since(image: SeededImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_run", Runs())
    measured = Measured(image)
    measured.measure(WANTED, 1)
    assert measured.outcome(FAULT)
    with monkeypatch.context() as changed_cases:
        changed_cases.setattr(detection, "_cases", lambda _area: "changed")
        assert measured.outcome(FAULT) is None
        # the healthy kernel is measured anew, and the fault with it or not at all
        measured.measure({"none": WANTED["none"]}, 1)
        assert measured.outcome(FAULT) is None
        measured.measure(WANTED, 1)
        assert measured.outcome(FAULT)
    assert measured.outcome(FAULT) is None


def test_an_area_that_is_gone_has_found_nothing(image: SeededImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_run", Runs())
    measured = Measured(image)
    measured.measure(WANTED, 1)

    def gone(area: str) -> str:
        raise InputError(f"area {area}: expected a folder of tests/")

    monkeypatch.setattr(detection, "_cases", gone)
    assert measured.outcome(FAULT) is None


def test_the_library_is_one_of_the_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_LIBRARY", tmp_path)
    keys = set()
    for text in ("count = 1", "count = 2"):
        (tmp_path / "oracle.py").write_text(text, encoding="utf-8")
        detection._library.cache_clear()
        keys |= {detection._cases(area) for area in ("pool/pool", "pool", "boot/counts")}
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "oracle.pyc").write_bytes(b"compiled")
    detection._library.cache_clear()
    assert len(keys) == 6
    assert detection._cases("pool/pool") in keys
    detection._library.cache_clear()


def test_a_fault_is_left_at_the_first_case_that_finds_it_and_measured_whole_when_that_is_asked(
    image: SeededImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    monkeypatch.setattr(detection, "_run", runs)
    first = Measured(image, is_first_enough=True)
    first.measure(WANTED, 1)
    outcomes = [first.outcome(fault) for fault in (FAULT, OTHER)]
    assert [outcome.found_by for outcome in outcomes if outcome] == [("/pool/resize/2M",), ()]
    first.measure(WANTED, 1)
    assert runs.asked == ["none", FAULT.name, OTHER.name]
    # what found nothing ran whole
    Measured(image).measure(WANTED, 1)
    assert runs.asked[3:] == [FAULT.name]
    assert [outcome.others_looked for outcome in map(first.outcome, (FAULT, OTHER)) if outcome] == [False, True]


def test_an_area_that_is_not_there(image: SeededImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "_run", Runs())
    for area, told in (("pool/none", "expected a folder of tests/"), ("boot/none", "expected boot/ and one of")):
        with pytest.raises(InputError, match=told):
            Measured(image).measure({FAULT.name: (FAULT.digest, (area,))}, 1)
