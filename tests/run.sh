#!/bin/bash
# Run a program of the suite: run.sh PROGRAM ARGUMENTS...
#
# tmt starts tests with a nearly empty environment, so the suite may be installed and yet not be in PATH. A worker that
# only discovers tests (CKI) runs no prepare step: there ci/install.sh installs the suite now, into /opt/hugepage-qa or,
# without root, ~/.local/share/hugepage-qa. HUGEPAGE_QA_EXTRAS in the metadata of a test tells it what the test needs.
set -euo pipefail

# a local run under tmt has no HOME; the caches and QEMU want one
: "${HOME:=$(getent passwd "$(id -u)" | cut -d: -f6)}"
export HOME

if ! command -v hugepage-qa >/dev/null; then
    tree="${TMT_TREE:-$(realpath "$(dirname "$0")/..")}"
    program="$tree/.venv/bin/hugepage-qa"
    if [ ! -x "$program" ]; then
        echo "hugepage-qa is neither in PATH nor in $tree/.venv: running $tree/ci/install.sh" >&2
        # all that it says is shown, and its last word taken
        if ! program=$("$tree/ci/install.sh" | sed -n -e 'w /dev/stderr' -e 's/^hugepage-qa is installed: //p'); then
            echo "hugepage-qa cannot be installed, for the reason above: let this machine reach the package index of pip" \
                "with Python 3.11 or newer, or install the RPMs of the suite" >&2
            exit 3
        fi
    fi
    PATH="$(dirname "$program"):$PATH"
fi
exec "$@"
