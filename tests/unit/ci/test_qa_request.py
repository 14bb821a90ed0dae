"""make's variables are checked before anything is started, and reach the tests unchanged."""

import struct
from pathlib import Path

import pytest

from hugepage_qa.commands.qa_request import MACHINE_PLANS, QaRequest
from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """The start of an x86 bzImage: magic number, and where the release stands."""
    image = bytearray(0x1000)
    image[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", image, 0x20E, 0x400)
    image[0x600:0x60D] = b"6.12.0-test x"
    path = tmp_path / "a; kernel"
    path.write_bytes(bytes(image))
    return path


def test_without_variables() -> None:
    request = QaRequest.from_environment({"PLAN": "", "ARCH": "", "KERNEL": "", "APPEND": "", "TMT_ARGS": ""})
    assert (request.plan, request.architectures, request.tmt_arguments) == ("smoke", ("x86_64",), ())
    assert request.test_environment == {}


def test_another_architecture_takes_the_plan_that_has_it() -> None:
    request = QaRequest.from_environment({"ARCH": "aarch64  s390x"})
    assert (request.plan, request.architectures) == ("boot", ("aarch64", "s390x"))


def test_the_plan_for_all_architectures() -> None:
    assert QaRequest.from_environment({"PLAN": "boot"}).architectures == tuple(BOARDS)


def test_values_reach_the_tests_unchanged() -> None:
    append = 'a="b c" $(touch /tmp/x) `id` ; \' \\ # ü'
    request = QaRequest.from_environment({"APPEND": append, "HUGEPAGE_QA_SEED": "7", "TMT_ARGS": "-vv -e 'A=b c'"})
    assert request.test_environment == {"HUGEPAGE_QA_APPEND": append, "HUGEPAGE_QA_SEED": "7"}
    assert request.tmt_arguments == ("-vv", "-e", "A=b c")


def test_a_kernel_names_its_architecture(kernel: Path) -> None:
    request = QaRequest.from_environment({"KERNEL": str(kernel)})
    assert request.architectures == ("x86_64",)
    assert request.test_environment == {"HUGEPAGE_QA_KERNEL": str(kernel)}


def test_a_kernel_for_another_architecture(kernel: Path) -> None:
    with pytest.raises(InputError, match="is for x86_64, but ARCH is aarch64"):
        QaRequest.from_environment({"KERNEL": str(kernel), "ARCH": "aarch64"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PLAN", "smoke; id"),
        ("PLAN", ".*"),
        ("ARCH", "x86_64|.*"),
        ("ARCH", "$(id)"),
        ("KERNEL", "/no/such file"),
        ("KERNEL", "/dev/null"),
        ("TMT_ARGS", "'unfinished"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        QaRequest.from_environment({name: value})
    assert "\n" not in str(caught.value)
    assert value.split(";", maxsplit=1)[0] in str(caught.value)


def test_a_plan_without_tests_for_the_architecture() -> None:
    with pytest.raises(InputError, match="use PLAN=boot"):
        QaRequest.from_environment({"PLAN": "smoke", "ARCH": "s390x"})


@pytest.mark.parametrize("plan", MACHINE_PLANS)
def test_every_plan_for_a_machine_runs_on_this_one(plan: str) -> None:
    request = QaRequest.from_environment({"PLAN": plan})
    assert (request.plan, request.architectures, request.provision) == (plan, (), ("--how", "local"))


def test_a_plan_for_the_machine_has_no_throwaway_machines() -> None:
    request = QaRequest.from_environment({"PLAN": "functional", "HUGEPAGE_QA_SEED": "7"})
    assert (request.architectures, request.provision, request.in_lab) == ((), ("--how", "local"), False)
    assert request.test_environment == {"HUGEPAGE_QA_SEED": "7"}


def test_guests_start_where_the_tests_run() -> None:
    assert QaRequest.from_environment({"PLAN": "guest", "HUGEPAGE_QA_CYCLES": "100"}).has_guests
    assert not QaRequest.from_environment({"PLAN": "smoke"}).has_guests
    request = QaRequest.from_environment({"PLAN": "guest", "HUGEPAGE_QA_CYCLES": "100"})
    assert request.test_environment == {"HUGEPAGE_QA_CYCLES": "100"}


@pytest.mark.parametrize("plan", ["smoke", "guest"])
def test_an_emulator_is_the_same_wherever_the_tests_run(plan: str) -> None:
    request = QaRequest.from_environment({"PLAN": plan, "HUGEPAGE_QA_QEMU": "build/qemu"})
    assert request.test_environment["HUGEPAGE_QA_QEMU"] == str(Path.cwd() / "build" / "qemu")


def test_avocado_vt_runs_one_plan_alone() -> None:
    request = QaRequest.from_environment({"PLAN": "vt"})
    assert request.has_guests
    assert request.needs_vt
    assert not QaRequest.from_environment({"PLAN": "functional"}).needs_vt


def test_the_same_plan_on_a_system_machine(kernel: Path) -> None:
    request = QaRequest.from_environment(
        {"PLAN": "functional", "PROVISION": "lab", "KERNEL": str(kernel), "APPEND": "a b"}
    )
    assert request.in_lab
    assert request.provision[:2] == ("--how", "lab")
    assert request.provision[-4:] == ("--kernel", str(kernel), "--append", "a b")


def test_the_memory_of_a_system_machine() -> None:
    request = QaRequest.from_environment({"PLAN": "guest", "PROVISION": "lab", "MEMORY": "16G"})
    assert request.provision[2:4] == ("--memory", "16G")
    with pytest.raises(InputError, match=r"^MEMORY=much: size 'much'"):
        QaRequest.from_environment({"PLAN": "guest", "PROVISION": "lab", "MEMORY": "much"})
    with pytest.raises(InputError, match=r"^MEMORY=16G: "):
        QaRequest.from_environment({"PLAN": "smoke", "MEMORY": "16G"})


@pytest.mark.parametrize("name", ["ARCH", "KERNEL", "APPEND", "MEMORY", "PROVISION"])
def test_what_a_plan_for_the_machine_cannot_use_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"^{name}=s390x: "):
        QaRequest.from_environment({"PLAN": "functional", name: "s390x"})


def test_throwaway_machines_are_not_provisioned() -> None:
    with pytest.raises(InputError, match=r"^PROVISION=lab: "):
        QaRequest.from_environment({"PLAN": "smoke", "PROVISION": "lab"})


def test_the_gate_is_told_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "PLAN": "gate",
        "HUGEPAGE_QA_ACCEPT": 'a "reason"',
        "HUGEPAGE_QA_BASELINES": "b",
        "HUGEPAGE_QA_SEED": "7",
    }
    request = QaRequest.from_environment(environment)
    assert request.test_environment == {
        "HUGEPAGE_QA_ACCEPT": 'a "reason"',
        "HUGEPAGE_QA_BASELINES": str(tmp_path / "b"),
    }
    assert (request.architectures, request.needs_all_results) == ((), True)


def test_what_the_gate_would_refuse_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"^HUGEPAGE_QA_BLOCKS=9: expected one of 1, 2, 3, 4, 5$"):
        QaRequest.from_environment({"PLAN": "gate", "HUGEPAGE_QA_BLOCKS": "9"})


def test_other_plans_may_skip() -> None:
    assert not QaRequest.from_environment({"PLAN": "functional"}).needs_all_results


def test_an_emulator_has_no_performance() -> None:
    with pytest.raises(InputError, match="PROVISION=lab"):
        QaRequest.from_environment({"PLAN": "gate", "PROVISION": "lab"})
