#!/bin/bash
# Build a kernel with READ_ONLY_THP_FOR_FS, which Debian's have not, from the distribution's source package.
#
# What it is configured for is in lab-kernel.config: as little as boots a system machine, so that the build is short
# (ten minutes of one CPU). Root installs the tools that are missing. Nothing is installed of the kernel itself.
set -euo pipefail
cd "$(dirname "$0")/.."

place=$PWD/build/lab-kernel
image=$place/bzImage

if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get >/dev/null; then
    echo "make lab-kernel: needs an x86_64 machine with apt-get, whose distribution has a package linux-source" >&2
    exit 3
fi
if [ "$image" -nt ci/lab-kernel.config ]; then
    echo "there is $image; remove it to build it again"
    exit 0
fi

ci/system-packages.sh cc build-essential - make make - flex flex - bison bison - bc bc - xz xz-utils - \
    /usr/include/libelf.h libelf-dev -

package=$(apt-cache depends linux-source | sed -n 's/^ *Depends: \(linux-source-[0-9.]*\)$/\1/p')
if [ -z "$package" ]; then
    echo "make lab-kernel: no package linux-source: run apt-get update, or add a package source of the distribution" >&2
    exit 3
fi

mkdir -p "$place"
work=$(mktemp -d "$place/work-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "downloading $package"
(cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package" >/dev/null)
mkdir "$work/source"
dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar xO "./usr/src/$package.tar.xz" |
    tar xJ -C "$work/source" --strip-components=1

# the make that called us exports its own ARCH, which is empty, and hands its options down
unset ARCH MAKEFLAGS MFLAGS MAKELEVEL
build=(nice -n 19 make -s -C "$work/source" O="$work/built")
"${build[@]}" KCONFIG_ALLCONFIG="$PWD/ci/lab-kernel.config" allnoconfig
# what the sources do not know, or lacks something that it depends on, is left out without a word
if lost=$(grep '^CONFIG_' ci/lab-kernel.config | grep -vxFf "$work/built/.config"); then
    echo "make lab-kernel: $package cannot be configured as wanted:" $lost >&2
    exit 3
fi
echo "building, which takes some minutes"
"${build[@]}" -j "${JOBS:-2}" bzImage
cp "$work/built/.config" "$place/config"
cp "$work/built/arch/x86/boot/bzImage" "$image"
echo "built $image"
echo "try it: make qa PLAN=text PROVISION=lab KERNEL=$image"
