"""Edits of C source by function: what is found, what is not, and several edits of one place."""

import pytest
from ci.seeded_kernel.source_edits import Edit, Place, edit_files, edit_text, find_bodies

TEXT = """\
#include <linux/mm.h>
#include <linux/fs.h>

/* take_page(count) is not here */
static int take_page(int count);

#ifdef CONFIG_POOL
static struct page *take_page(struct pool *pool,
\t\t\t      int count)
\t__must_hold(&lock)
{
\tif (count > pool->free)
\t\treturn NULL;	/* count-- is not here */
\tpool->free -= count;
\tput_page(pool);
\tpr_warn("count-- /* %d", count);
\tlist_del(pool->pages);
\tpool->free -= count;
\treturn pool->pages;
}
#else
static struct page *take_page(struct pool *pool, int count)
{
\treturn NULL;
}
#endif

int give_page(struct pool *pool)
{
\tif (take_page(pool, 1)) {
\t\tpool->free++;
\t}
\treturn 0;
}
"""


def edit(place: Place, anchor: str, code: str, *, number: int | None = None, fault: str = "a-fault") -> Edit:
    return Edit(fault, ("mm/pool.c",), ("take_page",), place, anchor, code, number)


def edited(*edits: Edit) -> str:
    text, failures = edit_text(TEXT, edits)
    assert failures == []
    return text


def failure(wanted: Edit) -> str:
    text, (line,) = edit_text(TEXT, [wanted])
    assert text == TEXT
    return line


def test_code_goes_before_after_and_in_place_of_what_is_found() -> None:
    assert "\tif (!SEEDED(a_fault))\nlist_del(pool->pages);" in edited(edit(Place.BEFORE, "list_del", "if (!SEEDED)"))
    assert "list_del(pool->pages);\nx = SEEDED(a_fault);" in edited(
        edit(Place.AFTER, r"list_del\([^;]*;", "x = SEEDED;")
    )
    instead = edit(Place.INSTEAD, r"list_(?P<what>\w+)\(pool->pages\)", "if (SEEDED) list_add_@what(); else @")
    assert "\tif (SEEDED(a_fault)) list_add_del(); else list_del(pool->pages);" in edited(instead)


def test_a_blank_of_an_anchor_is_any_white_space() -> None:
    assert "if (SEEDED(a_fault) || count > pool->free)" in edited(
        edit(Place.INSTEAD, r"if \( count > pool->free \)", "if (SEEDED || count > pool->free)")
    )


def test_the_header_is_included_once_and_first() -> None:
    text = edited(edit(Place.BEFORE, "list_del", "if (!SEEDED)"))
    assert text.startswith("#include <linux/seeded_fault.h>\n#include <linux/mm.h>\n#include <linux/fs.h>\n")
    assert text.count("seeded_fault.h") == 1


def test_comments_and_other_words_are_not_found_and_strings_are() -> None:
    assert "is not found" in failure(edit(Place.BEFORE, "is not here", "SEEDED"))
    assert "is not found" in failure(edit(Place.BEFORE, "age", "SEEDED"))
    assert '(SEEDED(a_fault) ? "" : "count-- /* %d")' in edited(
        edit(Place.INSTEAD, '"count-- [^"]*"', '(SEEDED ? "" : @)')
    )


def test_one_of_several_finds_by_its_number() -> None:
    assert "is found 2 times" in failure(edit(Place.BEFORE, "pool->free -=", "if (!SEEDED)"))
    assert "number 3 is wanted" in failure(edit(Place.BEFORE, "pool->free -=", "if (!SEEDED)", number=3))
    text = edited(edit(Place.BEFORE, "pool->free -=", "if (!SEEDED)", number=2))
    assert text.index("if (!SEEDED(a_fault))\npool->free") > text.index("list_del")


def test_a_statement_takes_no_place_of_what_belongs_to_a_condition() -> None:
    assert "belongs to a condition without braces" in failure(
        edit(Place.BEFORE, "return NULL", "if (SEEDED) x();", number=1)
    )
    assert "if (!SEEDED(a_fault))\nreturn NULL" in edited(edit(Place.BEFORE, "return NULL", "if (!SEEDED)", number=1))


def test_edits_of_one_place_nest_in_any_order() -> None:
    before = edit(Place.BEFORE, "list_del", "if (!SEEDED)", fault="first")
    inner = edit(Place.INSTEAD, r"list_del\(pool->pages\)", "one(SEEDED, @)", fault="second")
    outer = edit(Place.INSTEAD, r"list_del\(pool->pages\)", "two(SEEDED, @)", fault="third")
    wanted = "if (!SEEDED(first))\ntwo(SEEDED(third), one(SEEDED(second), list_del(pool->pages)));"
    assert wanted in edited(before, inner, outer)
    assert wanted in edited(inner, outer, before)


def test_an_edit_that_would_hide_another_one_is_told() -> None:
    keeps = edit(Place.INSTEAD, "count > pool->free", "(SEEDED || (@))", fault="keeps")
    drops = edit(Place.INSTEAD, "count > pool->free", "SEEDED", fault="drops")
    for pair in ((keeps, drops), (drops, keeps)):
        assert "(SEEDED(keeps) || (SEEDED(drops)))" in edited(*pair)
    other = edit(Place.INSTEAD, "count > pool->free", "!SEEDED", fault="other")
    _text, failures = edit_text(TEXT, [drops, other])
    assert failures == ["other: 'count > pool->free' hides drops: expected @ in its code"]


def test_edits_that_get_in_each_others_way_are_told() -> None:
    whole = edit(Place.INSTEAD, r"list_del\(pool->pages\)", "(SEEDED, @)", fault="whole")
    part = edit(Place.INSTEAD, r"\(pool->pages\)", "(SEEDED, @)", fault="part")
    _text, failures = edit_text(TEXT, [whole, part])
    assert failures == ["part: '\\\\(pool->pages\\\\)' overlaps the anchor of another edit"]


def test_bodies_of_a_function_and_no_calls_of_it() -> None:
    bodies = [TEXT[start:end] for start, end in find_bodies(TEXT, "take_page")]
    assert [body.count("return") for body in bodies] == [2, 1]
    assert list(find_bodies(TEXT, "pr_warn")) == []


@pytest.mark.parametrize(
    ("files", "functions", "told"),
    [
        (("mm/none.c",), ("take_page",), "a-fault: mm/none.c: no function take_page"),
        (("mm/pool.c",), ("none", "neither"), "a-fault: mm/pool.c: no function none or neither"),
    ],
)
def test_the_first_file_that_has_the_function(files: tuple[str, ...], functions: tuple[str, ...], told: str) -> None:
    wanted = Edit("a-fault", files, functions, Place.BEFORE, "list_del", "if (!SEEDED)")
    assert edit_files({"mm/pool.c": TEXT}.get, [wanted]) == ({}, [told])
    names = tuple(dict.fromkeys((*functions, "take_page")))
    either = Edit("a-fault", (*files, "mm/pool.c"), names, Place.BEFORE, "list_del", "if (!SEEDED)")
    texts, failures = edit_files({"mm/pool.c": TEXT}.get, [either])
    assert failures == []
    assert list(texts) == ["mm/pool.c"]
