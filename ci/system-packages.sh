#!/bin/bash
# Install packages of the distribution: system-packages.sh [PROGRAM-OR-FILE DEBIAN-PACKAGE RPM-PACKAGE]...
#
# Without arguments: what the suite itself needs. Root installs what is missing and says so; anybody else is told
# what is missing and how to install it, and goes on.
set -euo pipefail

if [ $# = 0 ]; then
    set -- rsync rsync rsync git git git
    if command -v apt-get >/dev/null; then
        # Debian keeps the module ensurepip in a package of its own
        python3 -c 'import ensurepip' 2>/dev/null || set -- "$@" "python3 -m venv" python3-venv python3
    else
        # Fedora's kernels and busybox are taken out of their packages with these
        set -- "$@" rpm2cpio rpm rpm cpio cpio cpio python3 python3 python3
    fi
fi

programs=()
packages=()
while [ $# -ge 3 ]; do
    if ! command -v "$1" >/dev/null && ! [ -e "$1" ]; then
        programs+=("$1")
        if command -v apt-get >/dev/null; then packages+=("$2"); else packages+=("$3"); fi
    fi
    shift 3
done
[ ${#packages[@]} -gt 0 ] || exit 0

if command -v apt-get >/dev/null; then
    refresh=(apt-get -q update)
    install=(apt-get -q -y --no-install-recommends install)
elif command -v dnf >/dev/null; then
    refresh=(true)
    install=(dnf -q -y --setopt=install_weak_deps=False install)
else
    echo "missing: ${programs[*]}; neither apt-get nor dnf is here to install them" >&2
    exit 0
fi

if [ "$(id -u)" != 0 ]; then
    echo "missing: ${programs[*]}; install with: sudo ${install[*]} ${packages[*]}" >&2
    exit 0
fi

echo "installing ${packages[*]} (for ${programs[*]})"
export DEBIAN_FRONTEND=noninteractive
# a repository that does not answer must not keep out what the others have
"${refresh[@]}" >/dev/null || echo "the list of packages is not up to date" >&2
for index in "${!packages[@]}"; do
    package=${packages[$index]}
    program=${programs[$index]}
    # Debian 13 moved qemu-system-s390x into a package of its own name
    if [[ $program == qemu-* ]] && command -v apt-cache >/dev/null && apt-cache show "$program" >/dev/null 2>&1; then
        package=$program
    fi
    "${install[@]}" "$package" >/dev/null || echo "cannot be installed: $package" >&2
done
