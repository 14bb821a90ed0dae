"""Settings of the boot tests come from the environment and are checked there."""

from pathlib import Path

import pytest

from hugepage_qa.cases.boot.case_groups import groups
from hugepage_qa.cases.run_settings import (
    MEANING,
    BootSettings,
    PoolSettings,
    describe_settings,
    soak_minutes,
)
from hugepage_qa.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUGEPAGE_QA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_defaults(cache: Path) -> None:
    settings = BootSettings.from_environment({})
    assert (settings.architecture, settings.kernel, settings.append, settings.seed) == ("x86_64", None, "", 1)
    assert (settings.cache, settings.groups) == (cache, groups())


def test_values(tmp_path: Path) -> None:
    kernel = tmp_path / "a kernel"
    kernel.write_bytes(b"x")
    settings = BootSettings.from_environment({"HUGEPAGE_QA_KERNEL": str(kernel), "HUGEPAGE_QA_RANDOM": "7"})
    assert (settings.kernel, settings.random) == (kernel, 7)
    assert BootSettings.from_environment({"HUGEPAGE_QA_GROUPS": "thp nodes"}).groups == ("thp", "nodes")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HUGEPAGE_QA_RANDOM", "-1"),
        ("HUGEPAGE_QA_RANDOM", "many"),
        ("HUGEPAGE_QA_SEED", "²"),
        ("HUGEPAGE_QA_GROUPS", "thp none"),
        ("HUGEPAGE_QA_KERNEL", "/no/such/kernel"),
        ("HUGEPAGE_QA_KERNEL", "/"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    with pytest.raises(InputError, match=f"^{name}={value}: "):
        BootSettings.from_environment({name: value})


def test_each_variable_is_described() -> None:
    assert all(name in describe_settings() for name in MEANING)


def test_a_minute_of_races_is_run_unless_another_number_is_given() -> None:
    assert (soak_minutes({}), soak_minutes({"HUGEPAGE_QA_MINUTES": "30"})) == (1, 30)
    with pytest.raises(InputError, match="HUGEPAGE_QA_MINUTES=long: expected a whole number"):
        soak_minutes({"HUGEPAGE_QA_MINUTES": "long"})


def test_random_operations_have_a_new_seed_unless_one_is_given() -> None:
    assert PoolSettings.from_environment({"HUGEPAGE_QA_SEED": "7"}) == PoolSettings(operations=400, seed=7)
    assert len({PoolSettings.from_environment({}).seed for _ in range(20)}) > 1
    with pytest.raises(InputError, match="HUGEPAGE_QA_OPERATIONS=few"):
        PoolSettings.from_environment({"HUGEPAGE_QA_OPERATIONS": "few"})
