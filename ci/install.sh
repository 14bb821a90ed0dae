#!/bin/bash
# Install the suite on a machine under test; the prepare step of every plan runs this, and a test that no plan prepared.
#
# HUGEPAGE_QA_EXTRAS=guest adds what guests need. Where that cannot be had the suite does without it, and tests skip
# with the reason. HUGEPAGE_QA_EXTRAS=vt adds avocado-vt to that, HUGEPAGE_QA_EXTRAS=report what the performance gate
# needs, HUGEPAGE_QA_EXTRAS=full all of it, HUGEPAGE_QA_EXTRAS=cross a compiler for other architectures, each in an
# environment apart.
#
# The environment is outside tmt's directories: tmt empties those when it copies the tree to a machine again.
set -euo pipefail

if command -v hugepage-qa >/dev/null; then
    echo "hugepage-qa is installed: $(command -v hugepage-qa)"
    exit 0
fi

extras="${HUGEPAGE_QA_EXTRAS:-}"
if [ "$(id -u)" = 0 ]; then
    venv=/opt/hugepage-qa
else
    venv="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.local/share/hugepage-qa"
fi
case "$extras" in
vt | report | full | cross) venv+="-$extras" ;;
esac

tree="${TMT_TREE:-$(realpath "$(dirname "$0")/..")}"
if [ ! -e "$tree/setup.py" ]; then
    echo "hugepage-qa is not installed, and $tree has tests without the library: install the package python3-hugepage-qa" >&2
    exit 1
fi
"$tree/ci/system-packages.sh"
case "$extras" in
vt) "$tree/ci/venv.sh" "$venv" "$tree[vt]" ;;
report) "$tree/ci/venv.sh" "$venv" "$tree[avocado,report,qemu]" ;;
full) "$tree/ci/venv.sh" "$venv" "$tree[vt,report,cross]" ;;
cross) "$tree/ci/venv.sh" "$venv" "$tree[avocado,cross]" ;;
*) "$tree/ci/venv.sh" "$venv" "$tree[avocado]" ;;
esac
case "$extras" in
guest | vt) "$tree/ci/guest-packages.sh" "$venv" "$extras" ;;
full) "$tree/ci/guest-packages.sh" "$venv" vt ;;
esac

# the tests that tmt starts after this step find it
echo "PATH=$venv/bin:$PATH" >>"${TMT_PLAN_ENVIRONMENT_FILE:-/dev/null}"
echo "hugepage-qa is installed: $venv/bin/hugepage-qa"
