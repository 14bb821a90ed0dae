#!/bin/bash
# Prepare this machine for make qa and make test: system packages, then the Python environment .venv.
#
# PLAN, ARCH and KERNEL in the environment are those of make qa: only the emulators that they need are installed.
# Run again it looks, changes nothing, and takes less than a second.
set -euo pipefail
cd "$(dirname "$0")/.."

ci/system-packages.sh
ci/venv.sh .venv -e '.[test]'
# which emulators there are is written down once, in the table of QEMU machines
wanted=$(.venv/bin/python ci/emulators.py)
mapfile -t emulators <<<"$wanted"
ci/system-packages.sh "${emulators[@]}"
