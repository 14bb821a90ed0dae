#!/bin/bash
# Build sdist, wheel, source RPM and RPMs of this tree: build_packages.sh DIRECTORY
set -euo pipefail

output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
rm -rf "$output"
.venv/bin/python -m build --outdir "$output" . >/dev/null
macros=()
python=/usr/bin/python3
if [ -z "$(rpm --eval '%{?pyproject_files}')" ]; then
    python=$PWD/.venv/bin/python
    macros=(--load ci/rpm-macros)
fi
# what the build needs is in the environment that called, and the unit tests are for "make test"
rpmbuild -ba --quiet --nodeps --nocheck "${macros[@]}" --define "__python3 $python" --define "_topdir $output/rpm" \
    --define "_sourcedir $output" --define "_srcrpmdir $output" --define "_rpmdir $output" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" ci/hugepage-qa.spec >"$output/rpmbuild.log" 2>&1 ||
    { tail -n 30 "$output/rpmbuild.log" >&2; exit 1; }
rm -rf "$output/rpm"
rpmlint --config ci/rpmlint.toml "$output"/*.rpm
ls "$output"
