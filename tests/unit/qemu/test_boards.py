"""The table of machines."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.boards import (
    BOARDS,
    Board,
    find_board,
    find_cpu,
)
from hugepage_qa.qemu.virtual_machine import processor_arguments


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_board_is_whole(board: Board) -> None:
    assert find_board(board.architecture) is board
    assert find_cpu(board, None) is board.cpus[board.default_cpu]
    assert all(name == cpu.name for name, cpu in board.cpus.items())
    assert board.qemu.startswith("qemu-system-")
    assert any("console" in word for word in board.serial)


def test_no_emulated_x86_machine_waits_for_its_timer() -> None:
    for architecture, board in BOARDS.items():
        assert ("no_timer_check" in board.kernel_words.split()) is (architecture == "x86_64")


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="x86_64, aarch64, ppc64le, s390x"):
        find_board("mips")
    with pytest.raises(InputError, match="max, qemu64"):
        find_cpu(find_board("x86_64"), "Nehalem")


def test_x86_has_a_machine_without_gigantic_pages() -> None:
    cpus = find_board("x86_64").cpus
    assert "pdpe1gb" in cpus["max"].features
    assert "pdpe1gb" not in cpus["qemu64"].features
    assert "pdpe1gb" in cpus["max"].host_flags, "KVM on a host without it would give another machine"


@pytest.mark.parametrize("cpu", ["max", "qemu64"])
def test_kvm_works_in_an_emulated_machine_that_is_to_run_guests_alone(cpu: str) -> None:
    board = find_board("x86_64")
    model = find_cpu(board, cpu)
    others = processor_arguments(board, model, TCG)
    inside = processor_arguments(board, model, TCG, runs_guests=True)
    assert "-svm" in others[-1].split(",") or cpu == "qemu64"
    assert "-svm" not in inside[-1].split(",")
    # under KVM it is what the host's is
    assert processor_arguments(board, model, "kvm", runs_guests=True) == processor_arguments(board, model, "kvm")


def test_processors_of_a_power_machine_run_one_after_the_other_where_they_are_emulated() -> None:
    board = find_board("ppc64le")
    model = find_cpu(board, None)
    accelerators = [processor_arguments(board, model, name)[3] for name in (TCG, "kvm")]
    assert accelerators == ["tcg,thread=single", "kvm"]
