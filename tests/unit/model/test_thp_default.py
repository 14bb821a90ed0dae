"""The switches of transparent huge pages after boot: the last valid word, else the configuration."""

import pytest

from hugepage_qa.model.thp_default import own_values


@pytest.mark.parametrize(
    ("command_line", "configured", "enabled"),
    [
        ("quiet", "madvise", "madvise"),
        ("quiet", "never", "never"),
        ("transparent_hugepage=always", "madvise", "always"),
        ("transparent_hugepage=always transparent_hugepage=never", "madvise", "never"),
        ("transparent_hugepage=sometimes", "always", "always"),
        ("transparent_hugepage=never", None, "never"),
    ],
)
def test_enabled(command_line: str, configured: str | None, enabled: str) -> None:
    assert own_values(command_line, configured, pages=512, small=False)["enabled"] == enabled


def test_enabled_is_not_known_without_a_configuration() -> None:
    assert "enabled" not in own_values("quiet", None, pages=512, small=False)


def test_a_small_machine_has_all_off() -> None:
    own = own_values("transparent_hugepage=always", "always", pages=512, small=True)
    assert [own[name] for name in ("enabled", "defrag", "use_zero_page", "khugepaged/defrag")] == [
        "never",
        "never",
        "0",
        "0",
    ]


def test_limits_are_parts_of_a_huge_page() -> None:
    own = own_values("", "always", pages=8192, small=False)
    limits = ("none", "swap", "shared")
    assert [own[f"khugepaged/max_ptes_{name}"] for name in limits] == ["8191", "1024", "4096"]
    assert own["khugepaged/pages_to_scan"] == "65536"
