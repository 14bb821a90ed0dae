#!/bin/bash
# Make a Python environment with the suite in it: venv.sh DIRECTORY PIP-ARGUMENTS...
#
# Quick when nothing changed: a mark in the environment tells what it was made of. With -e, which links to the tree, that
# is what says which packages it needs; without, the suite itself, too: a machine that keeps its environment must not run
# the suite of an older tree.
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

made_of() {
    local sources=(setup.py pyproject.toml)
    [ "$1" = -e ] || sources+=(libs/hugepage_qa)
    # tmt copies the tree to another place in each run
    printf '%s\n' "${@//"$source_tree"/}"
    (cd "$source_tree" && find "${sources[@]}" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum)
}

wanted=$(made_of "$@" | sha256sum)
if [ -x "$venv/bin/hugepage-qa" ] && [ "$(cat "$mark" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

python=$(find_python)
echo "installing the suite into $venv with $("$python" --version)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
echo "$wanted" >"$mark"
