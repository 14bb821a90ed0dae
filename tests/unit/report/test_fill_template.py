"""What is filled into a template stays text, in HTML and in Markdown."""

import pytest
from jinja2 import UndefinedError

from hugepage_qa.report.fill_template import escape_markdown, fill_template
from hugepage_qa.report.merged_runs import Table

HOSTILE = "<script>alert(1)</script> | `x` **b** [a](b)\n\n# title\r| cell \u2028&amp;"


def merged(kind: str, text: str) -> str:
    tables = [Table("title", ("head",), ((text,),), "note")]
    return fill_template(f"merged.{kind}.j2", about=text, headline=text, tables=tables)


def test_html_keeps_text_that_looks_like_markup() -> None:
    html = merged("html", HOSTILE)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt; | `x`") == 4
    assert "&amp;amp;" in html


def test_markdown_keeps_text_that_looks_like_markup() -> None:
    plain, hostile = (merged("md", text).splitlines() for text in ("plain", HOSTILE))
    assert [line.replace(escape_markdown(HOSTILE), "plain") for line in hostile] == plain
    escaped = r"&lt;script>alert(1)&lt;/script> \| \`x\` \*\*b\*\* \[a\](b) \# title \| cell &amp;amp;"
    assert escape_markdown(HOSTILE) == escaped


def test_a_value_that_nobody_gave_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="headline"):
        fill_template("merged.md.j2", about="", tables=[])
