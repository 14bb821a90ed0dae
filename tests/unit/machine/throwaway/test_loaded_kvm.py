"""KVM in a throwaway machine: loaded when a case asks for it, and once."""

from pathlib import Path
from typing import Any

import pytest

from hugepage_qa.machine.host import Host
from hugepage_qa.machine.real_machine import RealMachine
from hugepage_qa.machine.throwaway_machine import ThrowawayMachine


def test_what_the_kernel_has_of_kvm_is_loaded_once(
    machine: ThrowawayMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvm-amd.ko").write_bytes(b"\0depends=kvm,ccp\0")
    (tmp_path / "kvm.ko").write_bytes(b"a module")
    machine._files._modules = tuple(tmp_path.glob("*.ko"))
    loaded = []
    ask = machine._channel.ask

    def noted(letter: str, *fields: Any) -> Any:
        if letter != "i":
            return ask(letter, *fields)
        loaded.append(Path(str(fields[0])).name)
        # as a processor of another kind has it
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(machine._channel, "ask", noted)
    for _time in range(2):
        Host(machine).load_kvm()
    assert loaded == ["kvm.ko", "kvm_amd.ko"]


def test_nothing_is_loaded_on_a_machine_of_somebody(real: RealMachine) -> None:
    Host(real).load_kvm()
