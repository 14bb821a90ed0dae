"""avocado-vt is bootstrapped in a directory of its own, and what keeps it from that is one line."""

import configparser
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.plugins.vt_provider import VT_TYPES, prepare_vt, vt_options

ROOT = Path(__file__).resolve().parents[3]
PROVIDER = ROOT / "tests" / "vt"
#: where make qa PLAN=vt has installed it
VT_PYTHON = ROOT / ".venv-vt" / "bin" / "python"


class Bootstrap:
    """An avocado-vt that ends with ``code`` after it has ``said`` something."""

    def __init__(self, code: int = 0, said: str = "") -> None:
        self.code, self.said = code, said
        self.command: list[str] = []
        self.environment: Mapping[str, str] = {}

    def __call__(self, command: Sequence[str], env: Mapping[str, str], **_options: Any) -> object:
        self.command, self.environment = list(command), env
        return subprocess.CompletedProcess(command, self.code, self.said, "")


def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bootstrap: Bootstrap, provider: Path = PROVIDER) -> Any:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr("subprocess.run", bootstrap)
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return prepare_vt("libvirt", provider, tmp_path, tmp_path / "data", {"TMPDIR": "/scratch"})


def test_the_provider_is_registered_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap = Bootstrap()
    environment = prepare(tmp_path, monkeypatch, bootstrap)
    ini = configparser.ConfigParser()
    ini.read(tmp_path / "data" / "avocado-vt" / "virttest" / "test-providers.d" / "hugepage_qa.ini")
    assert ini["provider"]["uri"] == f"file://{PROVIDER}"
    assert (PROVIDER / ini["generic"]["subdir"] / "tests" / "cfg" / "hugepages.cfg").is_file()
    assert "--vt-no-downloads" in bootstrap.command
    assert bootstrap.environment == environment
    # nothing is written to the home of the user
    assert environment["HOME"] == environment["VIRTUAL_ENV"] == str(tmp_path)
    assert environment["TMPDIR"] == "/scratch"
    assert environment["HUGEPAGE_QA_CACHE"] == str(tmp_path / "cache")


@pytest.mark.parametrize(
    ("bootstrap", "said"),
    [
        (Bootstrap(1, "Required command tcpdump is missing. You must install it"), "needs tcpdump: not installed"),
        (Bootstrap(1, "Traceback\nno such luck\n"), "vt-bootstrap failed: Traceback no such luck"),
    ],
)
def test_a_bootstrap_that_fails(
    bootstrap: Bootstrap, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        prepare(tmp_path, monkeypatch, bootstrap)
    assert "\n" not in str(caught.value)


def test_avocado_vt_takes_the_emulator_of_our_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator = tmp_path / "qemu-kvm"
    emulator.touch(mode=0o755)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("HUGEPAGE_QA_QEMU", str(emulator))
    assert vt_options("qemu") == ["--vt-type", "qemu", "--vt-qemu-bin", str(emulator)]
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert vt_options("libvirt") == ["--vt-type", "libvirt"]


def test_no_avocado_vt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"avocado-vt is not installed; install hugepage-qa\[vt\]"):
        prepare_vt("qemu", PROVIDER, tmp_path, tmp_path / "data", {})


def test_no_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"expected one \*.ini of a test provider, found 0"):
        prepare(tmp_path, monkeypatch, Bootstrap(), tmp_path)
    (tmp_path / "broken.ini").write_text("no section", encoding="utf-8")
    with pytest.raises(InputError, match=r"broken.ini: "):
        prepare(tmp_path, monkeypatch, Bootstrap(), tmp_path)


def test_avocado_vt_is_not_where_the_suite_and_its_tests_are() -> None:
    """There it would complain in every Avocado command: it is bootstrapped in a directory that only we know."""
    assert importlib.util.find_spec("avocado_vt") is None or Path(sys.prefix).name == ".venv-vt"


@pytest.mark.skipif(not VT_PYTHON.exists(), reason="avocado-vt is not installed: make qa PLAN=vt does that")
@pytest.mark.parametrize("vt_type", VT_TYPES)
def test_avocado_vt_is_told_to_leave_pools_daemons_and_images_alone(vt_type: str, tmp_path: Path) -> None:
    config = tmp_path / "tests.cfg"
    variants = (PROVIDER / "generic" / "tests" / "cfg" / "hugepages.cfg").read_text(encoding="utf-8")
    config.write_text(f"vm_type = {vt_type}\nsetup_hugepages = yes\nvms = vm1\nvariants:\n{_indent(variants)}")
    script = (
        "import json, sys; from virttest.cartesian_config import Parser\n"
        "print(json.dumps([{k: v for k, v in d.items() if k[0] != '_'} for d in Parser(sys.argv[1]).get_dicts()]))"
    )
    done = subprocess.run(
        [str(VT_PYTHON), "-c", script, str(config)],
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found
    for params in found:
        assert (params["setup_hugepages"], params["hugepage"]) == ("no", "no")
        assert (params["vm_type"], params["vms"], params["start_vm"]) == ("none", "", "no")
        assert params["guest_driver"] == vt_type
    assert {params["page_size"] for params in found} == {"2M", "1G"}
    assert {params["type"] for params in found} == {"hugepages_refuse", "hugepages_release", "hugepages_inside"}


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
