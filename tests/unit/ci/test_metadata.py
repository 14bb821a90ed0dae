"""The metadata is read by a real tmt, one that has none of our plugins."""

import functools
import platform
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ci import qa
from tests.unit.forked_tmt import run_tmt

from hugepage_qa.catalogue.catalogued_tests import catalogued_tests
from hugepage_qa.commands.qa_request import MACHINE_PLANS, PLANS, QaRequest
from hugepage_qa.qemu.boards import BOARDS

ROOT = Path(__file__).resolve().parents[3]
COMMIT = re.compile(r"\b(?=[0-9]*[a-f])[0-9a-f]{12}\b|\bCVE-[0-9]{4}-[0-9]+")


def tmt(*arguments: str) -> str:
    """Return what ``tmt`` prints; an exit code other than 0 fails the test."""
    done = run_tmt(ROOT, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def exported() -> tuple[dict[str, Any], ...]:
    """Return the metadata of every test, with what it inherits."""
    return tuple(yaml.safe_load(tmt("tests", "export", "--how", "yaml", ".")))


@functools.cache
def plans(*context: str) -> dict[str, frozenset[str]]:
    """Return the tests that each plan discovers with tmt's options ``context``, by its name without /plans/."""
    names = [test["name"] for test in exported()]
    return {
        plan["name"].removeprefix("/plans/"): frozenset(
            name for name in names if any(re.search(phase["test"], name) for phase in plan["discover"])
        )
        for plan in yaml.safe_load(tmt(*context, "plans", "export", "--how", "yaml", "."))
    }


def test_lint() -> None:
    output = tmt("lint", "--enforce-check", "C000", "--outcome-only", "fail", "--outcome-only", "warn")
    assert not [line for line in output.splitlines() if line.startswith(("fail", "warn"))]


def test_each_architecture_has_named_and_random_tests() -> None:
    expected = {f"/tests/boot/{kind}/{name}" for kind in ("named", "random") for name in BOARDS}
    assert {test["name"] for test in exported() if test["name"].startswith("/tests/boot/")} == expected


def test_every_test_has_an_id_of_its_own() -> None:
    """An id stays when a test is renamed: history and dashboards are kept by it."""
    ids = [uuid.UUID(test["id"]) for test in exported()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("key", ["summary", "description", "contact", "component", "tier", "duration"])
def test_every_test_says_what_it_is(key: str) -> None:
    assert [test["name"] for test in exported() if not test[key]] == []


def test_tags_are_written_in_the_metadata_alone() -> None:
    for test in exported():
        assert "hugepages" in test["tag"], test["name"]
        assert len(test["tag"]) == len(set(test["tag"])), test["name"]
    code = [file for file in ROOT.glob("tests/*/*.py") if ":avocado: tags" in file.read_text(encoding="utf-8")]
    assert not code, "tmt and CI choose tests by the metadata, where they are inherited"


def test_components_are_what_a_test_can_find_wrong() -> None:
    """A bug is reported against one of them; guests are their hypervisor's as well."""
    for test in exported():
        if test["name"] == "/tests/unit":
            assert test["component"] == ["hugepage-qa"]
            continue
        guests = {"qemu-kvm"} if "guest" in test["tag"] else set()
        libvirt = {"libvirt"} if "libvirt" in test["tag"] else set()
        assert set(test["component"]) == {"kernel"} | guests | libvirt, test["name"]


def test_tiers_are_honest() -> None:
    """Tier 1 takes minutes and starts no guests, tier 3 is what reboots the machine or measures it, tier 2 the rest."""
    (smoke,) = plans()["smoke"]
    for test in exported():
        assert test["tier"] in ("1", "2", "3"), test["name"]
        assert (test["tier"] == "3") == (not {"reboot", "performance"}.isdisjoint(test["tag"])), test["name"]
        if test["tier"] == "1" and test["name"] != smoke:
            assert "guest" not in test["tag"], test["name"]


def test_a_package_is_required_only_where_every_distribution_has_it() -> None:
    """tmt gives up a whole plan for a required package that is not there; a path asks for what provides it."""
    required = {package for test in exported() for package in test["require"]}
    assert required == {"gcc"} | {f"/usr/bin/{board.qemu}" for board in BOARDS.values()}


@pytest.mark.parametrize("component", ["qemu-kvm", "libvirt"])
def test_what_guests_run_under_is_installed_for_them(component: str) -> None:
    package = {"qemu-kvm": "qemu-kvm", "libvirt": "libvirt-daemon-driver-qemu"}[component]
    for test in (one for one in exported() if component in one["component"]):
        assert package in test["recommend"], test["name"]


def linked(test: dict[str, Any]) -> dict[str, str]:
    """Return the targets of the links of ``test`` -> their relations."""
    return {target: relation for link in test["link"] for relation, target in link.items()}


def code_of(test: dict[str, Any]) -> str:
    """Return the file of cases that ``test`` runs, and what the page on known issues says of those that it names."""
    file = re.search(r"\w+\.py", test["test"])
    if file is None:
        return ""
    code = (ROOT / test["path"].strip("/") / file[0]).read_text(encoding="utf-8")
    quirks = {name.lower().replace("_", "-") for name in re.findall(r"\bQuirk\.([A-Z_]+)", code)}
    page = (ROOT / "docs" / "known-issues.md").read_text(encoding="utf-8").splitlines()
    return "\n".join(
        [code, *(line for line in page for name in quirks if line.startswith((f"| {name} |", f"* **{name}**")))]
    )


def test_every_commit_and_report_that_cases_name_is_linked() -> None:
    missing = {
        test["name"]: [one for one in COMMIT.findall(code_of(test)) if one not in " ".join(linked(test))]
        for test in exported()
    }
    assert {name: commits for name, commits in missing.items() if commits} == {}


def test_every_document_of_the_kernel_that_cases_name_is_linked() -> None:
    links = {test["name"]: linked(test) for test in exported()}
    missing = set()
    for test in catalogued_tests(ROOT):
        sources = " ".join(entry.source for entry in test.entries)
        for document in re.findall(r"\bDocumentation/([\w./-]+)\.(?:rst|txt)\b", sources):
            target = f"https://docs.kernel.org/{document}.html"
            if links[test.name].get(target) != "documented-by":
                missing.add((test.name, target))
        assert links[test.name] or test.name == "/tests/unit"
    assert missing == set()


def test_no_commit_or_report_is_linked_that_the_tree_does_not_explain() -> None:
    explained = "".join(
        file.read_text(encoding="utf-8")
        for suffix in ("libs/**/*.py", "tests/**/*.py", "docs/*.md")
        for file in ROOT.glob(suffix)
    )
    for test in exported():
        for target, relation in linked(test).items():
            assert relation in ("verifies", "relates", "documented-by"), test["name"]
            assert relation == "documented-by" or COMMIT.findall(target)[0] in explained, test["name"]


def test_plans() -> None:
    assert {*PLANS, *MACHINE_PLANS} <= plans().keys()


def test_plan_full_has_all_that_other_plans_have() -> None:
    everything = {test["name"] for test in exported()}
    assert plans()["full"] == everything - {"/tests/unit"}
    assert plans()["full"] == set().union(*(tests for plan, tests in plans().items() if plan != "full"))


def test_plan_full_starts_no_guests_where_there_are_to_be_none() -> None:
    context = ("--context", "guests=no")
    enabled = set(tmt(*context, "tests", "ls", "--enabled").split())
    assert not [name for name in plans(*context)["full"] & enabled if name.startswith(("/tests/guest/", "/tests/vt/"))]


@pytest.mark.parametrize(("area", "extras"), [("guest", "guest"), ("vt", "vt"), ("performance", "report")])
def test_a_test_names_what_is_installed_for_it_without_a_plan(area: str, extras: str) -> None:
    """Where ci/install.sh knows no such extras it installs the suite alone, and says nothing."""
    known = (ROOT / "ci" / "install.sh").read_text(encoding="utf-8")
    for test in (one for one in exported() if one["name"].startswith(f"/tests/{area}/")):
        assert test["environment"]["HUGEPAGE_QA_EXTRAS"] == extras, test["name"]
    assert f"HUGEPAGE_QA_EXTRAS={extras} " in known


def test_text_is_judged_where_there_is_no_hugetext() -> None:
    enabled = tmt("--context", "hugetext=no", "tests", "ls", "--enabled", "^/tests/text/").split()
    assert enabled == [
        "/tests/text/collapsed-text",
        "/tests/text/every-kernel",
        "/tests/text/hugetlb-text",
        "/tests/text/unread-text",
        "/tests/text/written-text",
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_a_test_knows_its_architecture_and_needs_its_emulator(name: str) -> None:
    for kind in ("named", "random"):
        (test,) = (one for one in exported() if one["name"] == f"/tests/boot/{kind}/{name}")
        assert test["environment"] == {"HUGEPAGE_QA_ARCH": name}
        assert test["require"] == [f"/usr/bin/{BOARDS[name].qemu}"]
        assert test["result"] == "custom"
        assert (ROOT / "tests" / "boot" / test["test"].split()[0]).resolve() == ROOT / "tests" / "run.sh"


@functools.cache
def requirements(*context: str) -> dict[str, set[str]]:
    """Return the tests of throwaway machines that are enabled with ``context``, each with its emulators."""
    words = [word for dimension in context for word in ("--context", dimension)]
    found = yaml.safe_load(tmt(*words, "tests", "export", "--how", "yaml", "^/tests/(boot|kernel|performance/path)"))
    return {test["name"]: set(test["require"]) - {"gcc"} for test in found if test["enabled"]}


def expect_own_architecture_alone(context: Sequence[str], name: str) -> None:
    """Expect with ``context`` what RHEL can on architecture ``name``: its only emulator is another one than others'."""
    own = ("boot/named", "boot/random", "kernel") if name != "ppc64le" else ()
    assert requirements(*context) == {f"/tests/{test}/{name}": {"/usr/libexec/qemu-kvm"} for test in own}


@pytest.mark.parametrize("name", BOARDS)
def test_what_boots_machines_is_enabled_on_rhel_for_its_own_architecture(name: str) -> None:
    """Of Power it has no emulator."""
    expect_own_architecture_alone(["distro=rhel-10.1", f"arch={name}"], name)


# ID and VERSION_ID of os-release(5) where QEMU is RHEL's package
@pytest.mark.parametrize(
    ("distribution", "version"),
    [
        ("rhel", "9.6"),
        ("centos", "10"),
        ("rocky", "9.6"),
        ("almalinux", "10.0"),
        ("almalinux", ""),
        ("ol", "9.6"),
        ("cloudlinux", "9.6"),
        ("eurolinux", "9.6"),
        ("miraclelinux", "9.6"),
    ],
)
def test_make_qa_knows_the_relatives_of_rhel(distribution: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"ID": distribution} | ({"VERSION_ID": version} if version else {})
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    expect_own_architecture_alone(qa.context_of(QaRequest.from_environment({"PLAN": "boot"})), "x86_64")


# as tmt's images are called (provision how: virtual), composes of Testing Farm, and targets of Packit
@pytest.mark.parametrize(
    "name",
    [
        "alma-9",
        "oracle-9",
        "rocky",
        "centos-stream-10",
        "CentOS-Stream-10",
        "AlmaLinux-9",
        "Rocky-9",
        "RHEL-10-Nightly",
    ],
)
def test_relatives_of_rhel_are_known_by_the_names_of_images(name: str) -> None:
    expect_own_architecture_alone([f"distro={name}", "arch=x86_64"], "x86_64")


@pytest.mark.parametrize("distribution", ["fedora", "debian", "ubuntu", "opensuse-tumbleweed"])
def test_all_that_boots_machines_is_enabled_elsewhere(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": distribution, "VERSION_ID": "13"})
    context = qa.context_of(QaRequest.from_environment({"PLAN": "boot"}))
    emulators = {name: {f"/usr/bin/{board.qemu}"} for name, board in BOARDS.items()}
    expected = {
        f"/tests/{test}/{name}": emulators[name] for test in ("boot/named", "boot/random", "kernel") for name in BOARDS
    }
    assert requirements(*context) == expected | {"/tests/performance/path-length": emulators["x86_64"]}


def test_nothing_that_boots_machines_is_enabled_on_rhel_of_unknown_architecture() -> None:
    assert requirements("distro=rhel-10") == {}
