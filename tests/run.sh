#!/bin/bash
# Run a program of the suite: run.sh PROGRAM ARGUMENTS...
#
# tmt starts tests with a nearly empty environment, so the suite may be installed and yet not be in PATH.
set -euo pipefail

# a local run under tmt has no HOME; the caches and QEMU want one
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME

if ! command -v hugepage-qa >/dev/null; then
    venv="${TMT_TREE:-$(dirname "$0")/..}/.venv"
    if [ ! -x "$venv/bin/hugepage-qa" ]; then
        echo "hugepage-qa is neither in PATH ($PATH) nor in $venv." >&2
        echo "Run ci/install.sh on this machine, or give tmt the prepare step of plans/main.fmf." >&2
        exit 3
    fi
    PATH="$(realpath "$venv/bin"):$PATH"
fi
exec "$@"
