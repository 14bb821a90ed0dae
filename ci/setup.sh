#!/bin/bash
# Prepare this machine for make qa and make test: system packages, then the Python environment .venv (.venv-vt for
# PLAN=vt).
#
# PLAN, ARCH and KERNEL in the environment are those of make qa: only the programs that they need are installed, with
# the argument --all those of every plan.
# Run again it looks, changes nothing, and takes less than a second.
set -euo pipefail
cd "$(dirname "$0")/.."

ci/system-packages.sh
if [ "${PLAN:-}" = vt ]; then
    # of its own: avocado-vt disturbs every Avocado command that does not know its data directory
    venv=.venv-vt
    ci/venv.sh $venv -e '.[tmt,vt]'
else
    venv=.venv
    ci/venv.sh $venv -e '.[test]'
fi
# fmf passes over a directory that has .fmf, and every tmt walks through all others: kernels that were built there have
# 30,000 of them
mkdir -p build/.fmf
# which programs there are is written down once, in the library
wanted=$($venv/bin/python ci/programs.py "$@")
mapfile -t programs <<<"$wanted"
ci/system-packages.sh "${programs[@]}"
case "${PROVISION:-}/ ${PLAN:-} $* " in
# guests run on the machine under test, which installs what they need by itself
lab/*) ;;
*" guest "* | *" functional "* | *" vt "* | *" --all "*) ci/guest-packages.sh $venv ;;
esac
