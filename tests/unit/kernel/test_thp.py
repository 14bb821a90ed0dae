"""Transparent huge pages in sysfs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.thp import DIRECTORY, Selection, ThpSize, parse_selection, read_thp
from hugepage_qa.kernel.tree import CapturedTree


def tree(**files: str) -> CapturedTree:
    return CapturedTree({f"{DIRECTORY}/{name}": text for name, text in files.items()})


def test_selection() -> None:
    text = "always defer defer+madvise [madvise] never\n"
    assert parse_selection(text, "x") == Selection("madvise", ("always", "defer", "defer+madvise", "madvise", "never"))


@pytest.mark.parametrize("text", ["", "always never", "[a] [b]", "[]", "[always", "al[ways] never", "[[a]]"])
def test_malformed_selection_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"^/sys/x, line 1: .*one in brackets"):
        parse_selection(text, "sys/x")


def test_kernel_without_thp() -> None:
    assert read_thp(CapturedTree({"sys/kernel/mm/hugepages/x": ""})) is None


def test_every_kind_of_file() -> None:
    size = "hugepages-64kB"
    thp = read_thp(
        tree(
            **{
                "enabled": "always [madvise] never\n",
                "shmem_enabled": "always within_size advise never [deny] force\n",
                "use_zero_page": "1\n",
                "hpage_pmd_size": "2097152\n",
                "hugetext_enabled": "3\n",
                "hugetext_pad_threshold": "4096\n",
                "khugepaged/defrag": "1\n",
                "khugepaged/max_nr_hugetext": "0\n",
                f"{size}/enabled": "always inherit madvise [never]\n",
                f"{size}/stats/nr_anon": "12\n",
                "hugepages-8kB/shmem_enabled": "always [inherit] within_size advise never\n",
            }
        )
    )
    assert thp is not None
    assert (thp.enabled, thp.defrag, thp.shmem_enabled) == ("madvise", None, "deny")
    assert (thp.numbers["use_zero_page"], thp.hpage_pmd_size) == (1, 2 << 20)
    assert (thp.hugetext_enabled, thp.numbers["hugetext_pad_threshold"]) == (3, 4096)
    assert thp.khugepaged == {"defrag": 1, "max_nr_hugetext": 0}
    assert thp.sizes == (
        ThpSize(8 << 10, None, Selection("inherit", ("always", "inherit", "within_size", "advise", "never")), {}),
        ThpSize(64 << 10, Selection("never", ("always", "inherit", "madvise", "never")), None, {"nr_anon": 12}),
    )
    assert thp.sizes[1].name == size


def test_files_of_later_kernels() -> None:
    thp = read_thp(tree(shrink_underused="1\n", new_policy="[a] b\n", text="what ever\n", other="[\n"))
    assert thp is not None
    assert (thp.numbers, thp.selections) == ({"shrink_underused": 1}, {"new_policy": Selection("a", ("a", "b"))})


@pytest.mark.parametrize("name", ["enabled", "hpage_pmd_size", "khugepaged/defrag", "hugepages-64kB/enabled"])
def test_malformed_file_is_named(name: str) -> None:
    with pytest.raises(InputError, match=rf"^/{DIRECTORY}/{name}, line 1: 'broken\\n'"):
        read_thp(tree(**{name: "broken\n"}))


@given(st.text() | st.text(alphabet="ab[] ", max_size=8))
def test_nothing_but_input_error(text: str) -> None:
    try:
        selection = parse_selection(text, "x")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert selection.selected in selection.allowed
