#!/bin/bash
# Make a Python environment with the suite in it: venv.sh DIRECTORY PIP-ARGUMENTS...
#
# Quick when nothing changed: a mark in the environment is newer than what says which packages it needs.
set -euo pipefail

venv=$1
shift
source_tree="$(realpath "$(dirname "$0")/..")"
mark="$venv/.hugepage-qa-installed"

find_python() {
    local python
    for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11; do
        if command -v "$python" >/dev/null &&
            "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    echo "no Python 3.11 or newer with the module ensurepip: install python3 and python3-venv" >&2
    return 3
}

if [ -x "$venv/bin/hugepage-qa" ] && [ "$mark" -nt "$source_tree/setup.py" ] &&
    [ "$mark" -nt "$source_tree/pyproject.toml" ]; then
    exit 0
fi

python=$(find_python)
echo "installing the suite into $venv with $("$python" --version)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
touch "$mark"
