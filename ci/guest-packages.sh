#!/bin/bash
# Install what guests on huge pages need: guest-packages.sh ENVIRONMENT [PLAN], a Python environment with the suite in
# it, and the plan that is to run there (guest, or vt with the programs that avocado-vt insists on).
#
# What cannot be had is said, and the rest is installed: without libvirt the guests run under QEMU alone. Quick when
# nothing changed, as venv.sh is.
set -euo pipefail

venv=$1
source_tree="$(realpath "$(dirname "$0")/..")"

# whatever make qa was asked for otherwise
wanted=$(PLAN="${2:-guest}" PROVISION='' ARCH='' KERNEL='' APPEND='' "$venv/bin/python" "$source_tree/ci/programs.py")
mapfile -t programs <<<"$wanted"
"$source_tree/ci/system-packages.sh" "${programs[@]}"

# each by itself: the binding of libvirt has to be built, the other has not
for module_and_package in 'qemu.qmp qemu.qmp>=0.0.3' 'libvirt libvirt-python>=9'; do
    read -r module package <<<"$module_and_package"
    "$venv/bin/python" -c "import $module" 2>/dev/null ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
        echo "cannot be installed: $package; tests that need it will be skipped" >&2
done
