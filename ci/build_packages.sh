#!/bin/bash
# Build sdist, wheel, source RPM and RPMs of this tree: build_packages.sh DIRECTORY
set -euo pipefail

output=$(realpath -m "$1")
cd "$(dirname "$0")/.."
rm -rf "$output"
.venv/bin/python -m build --outdir "$output" . >/dev/null
# what the build requires is in .venv, whatever the distribution has; the unit tests are for "make test"
rpmbuild -ba --quiet --nodeps --nocheck --load ci/rpm-macros --define "__python3 $PWD/.venv/bin/python" \
    --define "_topdir $output/rpm" \
    --define "_sourcedir $output" --define "_srcrpmdir $output" --define "_rpmdir $output" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" ci/hugepage-qa.spec >"$output/rpmbuild.log" 2>&1 ||
    { tail -n 30 "$output/rpmbuild.log" >&2; exit 1; }
rm -rf "$output/rpm"
rpmlint --config ci/rpmlint.toml "$output"/*.rpm
ls "$output"
