"""A variant of the avocado-vt provider passes on a true record of the same case, and fails on a false one."""

import copy
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import aexpect
import pytest
from tests.unit.cases.record_areas import read_records
from tests.unit.cases.recorded import WithoutEvidence
from tests.unit.cases.transcript import Event

from hugepage_qa.cases.case import Area
from hugepage_qa.cases.guest.guest_machine import DONE, GUEST, REFUSED
from hugepage_qa.errors import InputError
from hugepage_qa.machine.backend import Backend
from hugepage_qa.plugins import vt_test
from hugepage_qa.process.marks import RUN
from hugepage_qa.sizes import MIB

SOURCES = Path(__file__).resolve().parents[2] / "vt" / "generic" / "tests" / "src"

PARAMS = {
    "guest_driver": "qemu",
    "page_size": "2M",
    "guest_source": "anonymous",
    "guest_access": "private",
    "free_pages": "all_but_one",
    "setup_hugepages": "no",
    "hugepage": "no",
}


class Ended(Exception):
    """The test ended as avocado-vt has it end."""


class FakeTest:
    """What avocado-vt hands to a test."""

    name = SimpleNamespace(name="hugepage_qa.hugepages.refuse.one_page_short.anonymous.page_2M")
    whiteboard = ""

    def __init__(self, outputdir: Path) -> None:
        self.outputdir = str(outputdir)

    def error(self, message: str) -> None:
        raise Ended(f"error: {message}")

    def fail(self, message: str) -> None:
        raise Ended(f"fail: {message}")

    def cancel(self, message: str) -> None:
        raise Ended(f"cancel: {message}")


@pytest.fixture
def test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTest:
    monkeypatch.setenv(RUN, "0123")
    return FakeTest(tmp_path)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Return what the machine does, to be falsified: the record of the case that the variant is made of."""
    events = copy.deepcopy(read_records(Area("guest/refuse/qemu"))["one-page-short/2M"])

    @contextmanager
    def machine_with_guests() -> Iterator[Backend]:
        yield WithoutEvidence(events)

    monkeypatch.setattr(vt_test, "machine_with_guests", machine_with_guests)
    monkeypatch.setattr(vt_test, "read_pool_view", lambda _host: SimpleNamespace(pools={2 * MIB: None}))
    return events


def run(test: FakeTest, name: str = "hugepages_refuse", **changed: str) -> None:
    """Have avocado-vt's test run, with its parameters ``changed``."""
    params: Mapping[str, str] = PARAMS | changed
    _module(name).run(test, params, None)


def _module(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, SOURCES / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _refusal(world: list[Event]) -> Event:
    return next(event for event in world if event["operation"] == GUEST and REFUSED in event["result"])


@pytest.mark.usefixtures("world")
def test_a_true_world_passes(test: FakeTest) -> None:
    run(test)
    [case] = json.loads(test.whiteboard)["cases"]
    assert (case["name"], case["verdict"]) == ("/vt/qemu/refuse.one_page_short.anonymous/2M", "pass")


def test_a_page_that_is_lost_fails(test: FakeTest, world: list[Event]) -> None:
    refusal = next(
        index for index, event in enumerate(world) if event["operation"] == GUEST and REFUSED in event["result"]
    )
    for event in world[refusal:]:
        if event["operation"] == "observe" and event["arguments"][0].endswith("kB/free_hugepages"):
            event["result"] = f"{int(event['result']) + 1}\n"
    with pytest.raises(Ended, match=r"fail: 1 of 1 cases: /vt/qemu/refuse.one_page_short.anonymous/2M"):
        run(test)
    [case] = json.loads(test.whiteboard)["cases"]
    assert case["verdict"] == "fail"


def test_a_refusal_that_does_not_come_fails(test: FakeTest, world: list[Event]) -> None:
    _refusal(world)["result"] = {DONE: None}
    with pytest.raises(Ended, match=r"fail: .*a refusal: not enough free huge pages"):
        run(test)


class SilentSession:
    """A shell on a console that never shows its prompt."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        pass

    def __enter__(self) -> "SilentSession":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def sendline(self, _line: str) -> None:
        pass

    def read_up_to_prompt(self, timeout: float) -> str:
        raise aexpect.ExpectTimeoutError([f"prompt within {timeout:g} s"], "")


@pytest.mark.parametrize(("state", "said"), [("running", "error: .*console of"), ("off", "fail: .*ended by itself")])
def test_a_silent_console_is_an_error_unless_its_guest_has_ended(
    state: str, said: str, test: FakeTest, world: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    booted = copy.deepcopy(read_records(Area("guest/nested/qemu"))["pool-of-its-own/2M"])
    asked = [event["arguments"][1] if event["operation"] == GUEST else "" for event in booted]
    # nothing is typed after the first command, which the boot ends with
    told = {"operation": GUEST, "arguments": ["qemu", "state", "hugepage-qa-guest"], "result": {DONE: state}}
    world[:] = [*booted[: asked.index("type") + 1], told, *booted[asked.index("destroy") :]]
    monkeypatch.setattr(aexpect, "ShellSession", SilentSession)
    with pytest.raises(Ended, match=said):
        run(test, "hugepages_inside")


@pytest.mark.usefixtures("world")
def test_what_the_variant_says_is_done(test: FakeTest) -> None:
    """The record is of a guest that is short by one page: with half of the pages the suite asks for something else."""
    with pytest.raises(Ended, match=r"error: .*Diverged"):
        run(test, free_pages="half")
    with pytest.raises(Ended, match=r"error: .*Diverged"):
        run(test, guest_source="memfd", guest_access="shared")


@pytest.mark.usefixtures("world")
def test_a_page_size_that_the_machine_does_not_have(test: FakeTest) -> None:
    with pytest.raises(Ended, match=r"cancel: .*this machine has no huge pages of 1G"):
        run(test, page_size="1G")


@pytest.mark.parametrize("name", ["setup_hugepages", "hugepage"])
def test_avocado_vt_must_not_set_the_pool_up(name: str, test: FakeTest) -> None:
    with pytest.raises(Ended, match=f"error: {name} = yes: avocado-vt would set nr_hugepages to 0"):
        run(test, **{name: "yes"})


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("hugepages_refuse", {"guest_driver": "none"}),
        ("hugepages_refuse", {"page_size": "huge"}),
        ("hugepages_refuse", {"guest_source": "disk"}),
        ("hugepages_refuse", {"guest_access": ""}),
        ("hugepages_refuse", {"free_pages": "10"}),
        ("hugepages_release", {"guest_end": "never"}),
    ],
)
def test_a_parameter_that_is_none_is_named(source: str, changed: dict[str, str], test: FakeTest) -> None:
    [(name, value)] = changed.items()
    with pytest.raises((InputError, Ended)) as caught:
        run(test, source, **changed)
    assert value in str(caught.value)
    assert name.partition("_")[2] in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.usefixtures("world")
def test_without_a_run_around_it_the_test_protects_the_machine(test: FakeTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN)
    held = []

    @contextmanager
    def protected_machine(purpose: str) -> Iterator[None]:
        held.append(purpose)
        yield

    monkeypatch.setattr(vt_test, "protected_machine", protected_machine)
    run(test)
    assert held == ["a test of the avocado-vt provider"]
