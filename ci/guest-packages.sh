#!/bin/bash
# Install what guests on huge pages need: guest-packages.sh ENVIRONMENT [PLAN], a Python environment with the suite in
# it, and the plan that is to run there (guest, or vt with the programs that avocado-vt insists on).
#
# What cannot be had is said, and the rest is installed: without libvirt the guests run under QEMU alone. Quick when
# nothing changed, as venv.sh is.
set -euo pipefail

venv=$1
source_tree="$(realpath "$(dirname "$0")/..")"
mark="$venv/.hugepage-qa-guest"

wanted=$(PLAN="${2:-guest}" PROVISION='' "$venv/bin/python" "$source_tree/ci/programs.py")
mapfile -t programs <<<"$wanted"
"$source_tree/ci/system-packages.sh" "${programs[@]}"

if [ "$mark" -nt "$source_tree/setup.py" ]; then
    exit 0
fi
# each by itself: the binding of libvirt has to be built, the other has not
for package in 'qemu.qmp>=0.0.3' 'libvirt-python>=9'; do
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
        echo "cannot be installed: $package; tests that need it will be skipped" >&2
done
touch "$mark"
