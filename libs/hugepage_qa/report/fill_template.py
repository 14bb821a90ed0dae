"""HTML and Markdown made of the templates in ``templates/``: what is filled in stays text, whoever wrote it."""

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_eval_context, select_autoescape
from jinja2.nodes import EvalContext

_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_MARKUP = re.compile(r"[\\`*_\[\]|#]")


def fill_template(name: str, **values: Any) -> str:
    """Return the template ``name``, which ends in ``.html.j2`` or ``.md.j2``, with ``values`` in it.

    Every expression of a template is escaped for its language, in HTML but ``markupsafe.Markup``. A name that the
    template uses and nobody gave raises ``jinja2.UndefinedError``.
    """
    return _environment().get_template(name).render(values)


def escape_markdown(text: str) -> str:
    """Return ``text`` as one line with what Markdown or HTML would take for markup made harmless."""
    line = _LINE_BREAKS.sub(" ", text).replace("&", "&amp;").replace("<", "&lt;")
    return _MARKUP.sub(r"\\\g<0>", line)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hugepage_qa.report"),
        autoescape=select_autoescape(("html.j2",)),
        finalize=_escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@pass_eval_context
def _escape(context: EvalContext, value: object) -> object:
    # Jinja2 escapes HTML by itself; a filter for Markdown would be forgotten somewhere
    return value if context.autoescape else escape_markdown(str(value))
