"""Settings of Sphinx; ``ci/build_docs.py`` builds."""

project = "hugepage-qa"
author = "the hugepage-qa maintainers"
extensions = ["myst_parser", "sphinx_click", "hugepage_qa.catalogue.sphinx_cases"]
root_doc = "index"
html_theme = "furo"
html_title = "hugepage-qa"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
# headings are targets of links inside a page
myst_heading_anchors = 3
man_pages = [("commands", "hugepage-qa", "test the huge page support of Linux kernels", author, 1)]


def setup(app):
    """Take examples of commands for what they are, not for markup."""
    app.connect("sphinx-click-process-epilog", _as_code)


def _as_code(_app, _context, lines):
    lines[:] = [f"Example: ``{line.removeprefix('Example: ')}``" if line else line for line in lines]
