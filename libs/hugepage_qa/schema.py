"""Documents that other programs wrote are checked against a schema before anything of them is used."""

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from hugepage_qa.errors import InputError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

_Built = TypeVar("_Built")


@cache
def _validator(package: str, name: str) -> "Draft202012Validator":
    # most commands check no document, and it takes longer to import than all of ours
    from jsonschema import Draft202012Validator  # noqa: PLC0415

    text = resources.files(package).joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text, object_hook=_with_python_ends))


def _with_python_ends(schema: dict[str, Any]) -> dict[str, Any]:
    """Return ``schema`` with the end of ECMA in its patterns: Python lets a line end follow ``$``."""
    pattern = schema.get("pattern")
    return {**schema, "pattern": _END.sub(r"\\Z", pattern)} if isinstance(pattern, str) else schema


_END = re.compile(r"(?<!\\)\$(?=\||$)")


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


def read_document(file: Path, package: str, schema: str, advice: str) -> Any:
    """Return the JSON document in ``file``, which ``schemas/<schema>.json`` of ``package`` allows.

    Raises InputError for any other, which ends with the ``advice`` what to do about it.
    """
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
        violation = find_violation(document, package, schema)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}): {advice}") from error
    if violation:
        raise InputError(f"{file}: {violation}: {advice}")
    return document


def build(kind: type[_Built], document: Mapping[str, Any]) -> _Built:
    """Return the dataclass ``kind`` that ``document`` holds, which has passed its schema.

    Its keys are the names of the fields; others, such as the format and its version, are left out, and a field that
    has no key keeps its default. Raises TypeError without a key that is needed, ValueError for what is no date.
    """
    types = _types(kind)  # type: ignore[arg-type]
    known = [field.name for field in fields(kind) if field.name in document]  # type: ignore[arg-type]
    return kind(**{name: _value(types[name], document[name]) for name in known})


@cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _value(kind: Any, value: Any) -> Any:
    """Return ``value`` as the type ``kind``; of a union other than with None it is left as JSON has it."""
    arguments = get_args(kind)
    origin = get_origin(kind)
    if value is None or kind in (Any, object):
        return value
    if origin is UnionType:
        wanted = [one for one in arguments if one is not NoneType]
        return _value(wanted[0], value) if len(wanted) == 1 else value
    if origin in (tuple, list):
        return origin(_value(arguments[0], one) for one in value)
    if origin in (dict, Mapping):
        return {arguments[0](key): _value(arguments[1], one) for key, one in value.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return build(kind, value)
    if issubclass(kind, date):
        return kind.fromisoformat(value)
    return kind(value) if issubclass(kind, Enum | Path) else value
