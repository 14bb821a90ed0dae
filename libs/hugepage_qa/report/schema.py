"""The documents of Avocado, of tmt and of our own tests: their schemas lie in ``schemas/``."""

from hugepage_qa import schema as schemas


def find_violation(document: object, schema: str) -> str | None:
    """Return the first violation of ``schemas/<schema>.json`` in ``document`` as one line, or None."""
    return schemas.find_violation(document, "hugepage_qa.report", schema)
