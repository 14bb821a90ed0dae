"""Check the files for CI systems against the format of each: what such a system refuses would be found days later.

GitHub's and GitLab's schemas are the published ones, which come with check-jsonschema. Packit, Testing Farm and
Greenwave publish none: ci/schemas has what their documentation says of the parts that are used.
"""

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fmf
import jsonschema
import referencing
import tmt.utils
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from tmt._compat.pathlib import Path as TmtPath

ROOT = Path(__file__).resolve().parent.parent
TESTING_FARM = "testing-farm-request"
PUBLISHED = {"ci/github/*.yml": "vendor.github-workflows", "ci/gitlab/*.yml": "vendor.gitlab-ci"}


def main(root: Path = ROOT) -> int:
    """Print what is wrong in the tree ``root`` and return 1, or return 0."""
    problems = [
        *_packit(root),
        *_testing_farm(root),
        *_gating(root),
        *_plan_import(root),
        *_published(root),
    ]
    for problem in problems:
        print(f"ci files: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _packit(root: Path) -> Iterator[str]:
    document = yaml.safe_load((root / ".packit.yaml").read_text(encoding="utf-8"))
    if (violation := _violation(document, "packit")) is not None:
        yield f".packit.yaml: {violation}"
        return
    identifiers = [job["identifier"] for job in document["jobs"]]
    yield from (f".packit.yaml: {one} is there twice" for one in set(identifiers) if identifiers.count(one) > 1)
    yield from (f".packit.yaml: {problem}" for job in document["jobs"] for problem in _no_plan(root, job["tmt_plan"]))
    if not (root / document["specfile_path"]).is_file():
        yield f".packit.yaml: no {document['specfile_path']}"


def _testing_farm(root: Path) -> Iterator[str]:
    for file in sorted((root / "ci" / "testing-farm").glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if (violation := _violation(document, TESTING_FARM)) is not None:
            yield f"{file.name}: {violation}"
            continue
        yield from (f"{file.name}: {problem}" for problem in _no_plan(root, document["test"]["fmf"]["name"]))
        for one in document["environments"]:
            # tmt never finds out the architecture by itself
            if one.get("tmt", {}).get("context", {}).get("arch") != one["arch"]:
                yield f"{file.name}: the context of {one['arch']} names another architecture, or none"


def _no_plan(root: Path, expression: str) -> Iterator[str]:
    if not any(re.search(expression, f"/plans/{plan.stem}") for plan in (root / "plans").glob("*.fmf")):
        yield f"{expression}: no such plan"


class _Tagged(yaml.SafeLoader):
    """Reads ``!Tag value`` as ``{"!Tag": value}``."""


def _tagged(loader: yaml.SafeLoader, tag: str, node: yaml.MappingNode) -> dict[str, Any]:
    return {f"!{tag}": loader.construct_mapping(node, deep=True)}


_Tagged.add_multi_constructor("!", _tagged)


def _gating(root: Path) -> Iterator[str]:
    text = (root / "ci" / "fedora" / "gating.yaml").read_text(encoding="utf-8")
    for document in yaml.load_all(text, Loader=_Tagged):
        if document is not None and (violation := _violation(document, "gating")) is not None:
            yield f"gating.yaml: {violation}"


def _plan_import(root: Path) -> Iterator[str]:
    """Check the plan against tmt's schema; "tmt lint" would fetch the repository that it names."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / ".fmf").mkdir()
        shutil.copy(root / ".fmf" / "version", Path(directory) / ".fmf")
        shutil.copy(root / "ci" / "fedora" / "hugepages.fmf.in", Path(directory) / "hugepages.fmf")
        schema = tmt.utils.load_schema(TmtPath("plan.yaml"))
        for plan in fmf.Tree(directory).prune(keys=["plan"]):
            found = plan.validate(schema, tmt.utils.load_schema_store())
            yield from (f"hugepages.fmf.in: {error.message}" for error in found.errors)


def _published(root: Path) -> Iterator[str]:
    for pattern, schema in PUBLISHED.items():
        files = [str(file) for file in sorted(root.glob(pattern))]
        done = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *files], catch_exceptions=False)
        if done.exit_code:
            yield f"{pattern}: {' '.join(done.output.split())}"


def _violation(document: object, schema: str) -> str | None:
    schemas = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "ci/schemas").glob("*.json")}
    resources = [(name, referencing.Resource.from_contents(one)) for name, one in schemas.items()]
    registry = referencing.Registry().with_resources(resources)
    validator = jsonschema.Draft202012Validator(schemas[f"{schema}.json"], registry=registry)
    error = next(iter(validator.iter_errors(document)), None)
    return None if error is None else f"{error.json_path}: {error.message}"


if __name__ == "__main__":
    sys.exit(main())
