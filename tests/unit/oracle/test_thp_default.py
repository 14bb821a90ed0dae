"""The switches of transparent huge pages that no parameter sets."""

from hugepage_qa.oracle.boot.thp_parameters import default_switches


def test_a_small_machine_has_all_off() -> None:
    own = default_switches(512, small=True)
    assert [own[name] for name in ("defrag", "use_zero_page", "khugepaged/defrag")] == ["never", 0, 0]


def test_limits_are_parts_of_a_huge_page() -> None:
    own = default_switches(8192, small=False)
    assert [own[f"khugepaged/max_ptes_{name}"] for name in ("none", "swap", "shared")] == [8191, 1024, 4096]
    assert own["khugepaged/pages_to_scan"] == 65536
