"""Kernels counted in turns on machines that nobody boots, and the samples that they make."""

import errno
from pathlib import Path

import pytest
from tests.unit.bench.counted_machines import CountedMachines
from tests.unit.cases.fake_machines import lost

from hugepage_gate.sample_format import parse_samples
from hugepage_qa.bench import counted_kernels
from hugepage_qa.bench.counted_kernels import (
    CountedBoot,
    CountedBoots,
    CountedKernel,
    KernelLost,
    missing_paths,
    sample_document,
)
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.lost_machine import Loss


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> CountedMachines:
    monkeypatch.setattr(counted_kernels, "find_emulator", lambda _board: "/bin/true")
    return CountedMachines(monkeypatch)


def kernel(directory: Path, release: str, words: str = "") -> CountedKernel:
    image = directory / f"vmlinuz-{release}"
    image.write_bytes(release.encode())
    return CountedKernel(KernelImage(image, "x86_64", release, None), words)


def count(kernels: list[CountedKernel], boots: int = 2) -> list[CountedBoot]:
    return list(CountedBoots(kernels, boots, Path(), machines=1).run())


def test_kernels_take_turns_and_each_boot_has_random_numbers_of_its_own(
    machines: CountedMachines, tmp_path: Path
) -> None:
    one, other = kernel(tmp_path, "6.12", "quiet"), kernel(tmp_path, "6.1")
    boots = count([one, other])
    assert [(boot.kernel, boot.number) for boot in boots] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert [started.machine.instructions_seed for started in machines.started] == [0, 1, 2, 3]
    assert machines.started[0].machine.command_line.endswith(" quiet")
    assert "quiet" not in machines.started[1].machine.command_line


def test_the_same_kernel_twice_is_two_kernels(machines: CountedMachines, tmp_path: Path) -> None:
    boots = count([kernel(tmp_path, "6.12")] * 2)
    assert [boot.kernel for boot in boots] == [0, 1, 0, 1]
    assert len(machines.started) == 4


def test_samples_are_what_the_gate_reads(machines: CountedMachines, tmp_path: Path) -> None:
    one = kernel(tmp_path, "6.12", "quiet")
    samples = parse_samples(sample_document(one, count([one])[::-1]), "6.12")
    assert samples.suite == "path-length"
    assert str(samples.subject["kernel"]).startswith("6.12 ")
    assert str(samples.subject["kernel"]).endswith(" quiet")
    (fault,) = (series for series in samples if series.metric == "fault-base-4K")
    assert fault.unit == "instructions/page"
    assert [(block.order, block.boot, len(block.samples)) for block in fault.blocks] == [(0, "0", 25), (1, "1", 25)]
    assert machines.started


def test_two_builds_of_one_release_are_two_subjects(tmp_path: Path) -> None:
    one = kernel(tmp_path, "6.12")
    (tmp_path / "again").mkdir()
    other = kernel(tmp_path / "again", "6.12")
    other.kernel.path.write_bytes(b"another build")
    assert one.label == other.label
    assert one.identity() != other.identity()


def test_what_is_missing_in_a_boot_is_left_out(machines: CountedMachines, tmp_path: Path) -> None:
    machines.lengths["6.12"] = {"grow hugetlb 1073741824": OSError(errno.ENOMEM, "")}
    one = kernel(tmp_path, "6.12")
    boots = count([one])
    assert missing_paths(boots) == {"grow-hugetlb-1G": "Cannot allocate memory"}
    metrics = {series["metric"] for series in sample_document(one, boots)["series"]}
    assert "grow-hugetlb-1G" not in metrics
    assert "grow-hugetlb-2M" in metrics


@pytest.mark.parametrize("loss", [Loss.PANICKED, Loss.NO_ANSWER])
def test_a_machine_that_is_lost_for_good_names_its_kernel(
    machines: CountedMachines, tmp_path: Path, loss: Loss
) -> None:
    one = kernel(tmp_path, "6.12", "quiet")
    machines.lengths["6.12"] = lost(loss)
    with pytest.raises(KernelLost, match=f"6.12 quiet: {loss.value}"):
        count([one])
