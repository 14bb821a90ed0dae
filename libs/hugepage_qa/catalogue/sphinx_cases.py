"""An extension of Sphinx: its search finds cases by the words of their names and rules, and leads to each of them.

``{qa:case} NAME`` describes a case; the first paragraph below it is the rule. As a role it is a link to the case.
``{qa:coverage} FILE`` is the table of the tests of another suite, and of the cases that see the same.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from docutils.nodes import Element, Node
from sphinx.addnodes import desc_content, desc_name, desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.builders import Builder
from sphinx.directives import ObjectDescription
from sphinx.domains import Domain, ObjType
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from hugepage_qa.catalogue.catalogued_tests import anchor
from hugepage_qa.catalogue.coverage import read_peer, render_tests

# the index of the search escapes for HTML what the search escapes once more
_ESCAPED_TWICE = str.maketrans({"'": "\N{RIGHT SINGLE QUOTATION MARK}", '"': "\N{RIGHT DOUBLE QUOTATION MARK}"})


class CaseDescription(ObjectDescription[str]):
    """A case, with its address."""

    def handle_signature(self, sig: str, signode: desc_signature) -> str:
        signode += desc_name(sig, sig)
        return sig

    def add_target_and_index(self, name: str, _sig: str, signode: desc_signature) -> None:
        signode["ids"].append(anchor(name))
        self.state.document.note_explicit_target(signode)

    def transform_content(self, content_node: desc_content) -> None:
        """Make the case known with its rule."""
        cases = self.env.domaindata[CaseDomain.name]["cases"]
        cases[self.names[0]] = (self.env.docname, content_node[0].astext())


class CoverageTable(SphinxDirective):
    """The tests of another suite, from a file below the sources of the documentation."""

    required_arguments = 1

    def run(self) -> list[Node]:
        file = Path(self.env.srcdir, self.arguments[0])
        self.env.note_dependency(file)
        return self.parse_text_to_nodes("\n".join(render_tests(read_peer(file))))


class CaseDomain(Domain):
    """The cases of the catalogue."""

    name = "qa"
    label = "hugepage-qa"
    object_types: ClassVar[dict[str, ObjType]] = {"case": ObjType("case", "case")}
    directives: ClassVar[dict[str, Any]] = {"case": CaseDescription, "coverage": CoverageTable}
    roles: ClassVar[dict[str, Any]] = {"case": XRefRole()}
    initial_data: ClassVar[dict[str, Any]] = {"cases": {}}

    def resolve_xref(
        self,
        _env: BuildEnvironment,
        page: str,
        builder: Builder,
        _type: str,
        case: str,
        _node: pending_xref,
        content: Element,
    ) -> Element | None:
        """Return the link to ``case``, None where there is none of that name."""
        if case not in self.data["cases"]:
            return None
        target, rule = self.data["cases"][case]
        return make_refnode(builder, page, target, anchor(case), [content], rule)

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Yield what the search knows: with the name it looks through the rule."""
        for name, (page, rule) in self.data["cases"].items():
            yield name, f"{name}: {rule}".translate(_ESCAPED_TWICE), "case", page, anchor(name), 1


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the domain to Sphinx, which calls this."""
    app.add_domain(CaseDomain)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
