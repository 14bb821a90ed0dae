#!/bin/bash
# Build sdist, wheel and source RPM of this tree: build_packages.sh DIRECTORY
set -euo pipefail

output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
rm -rf "$output"
.venv/bin/python -m build --outdir "$output" . >/dev/null
# Fedora's macros are not needed to pack the sources, and need not be here
rpmbuild -bs --quiet --nodeps --define "_topdir $output/rpm" --define "_sourcedir $output" \
    --define "_srcrpmdir $output" ci/hugepage-qa.spec
rm -rf "$output/rpm"
rpmlint --config ci/rpmlint.toml "$output"/*.src.rpm
ls "$output"
