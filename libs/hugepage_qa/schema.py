"""Documents that other programs wrote are checked against a schema before anything of them is used."""

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


@cache
def _validator(package: str, name: str) -> "Draft202012Validator":
    # most commands check no document, and it takes longer to import than all of ours
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    text = resources.files(package).joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def find_violation(document: object, package: str, schema: str) -> str | None:
    """Return the first violation of ``schemas/<schema>.json`` of ``package`` in ``document`` as one line, or None."""
    error = next(iter(_validator(package, schema).iter_errors(document)), None)
    if error is None:
        return None
    where = "".join(f"[{key!r}]" for key in error.absolute_path)
    return f"{where}: {error.message}" if where else error.message


def parse_json(text: str) -> Any:
    """Return the JSON document in ``text``; NaN and infinities, which Python would let through, are errors.

    Raises ValueError.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
