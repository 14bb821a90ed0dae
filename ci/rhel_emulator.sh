#!/bin/bash
# Run a command where /usr/libexec/qemu-kvm, with no more than RHEL's has, is the only emulator of the machine:
#
#     RHEL=9 ci/rhel_emulator.sh env PLAN=guest .venv/bin/python ci/qa.py
#
# It is the double of the tests (tests/unit/qemu/rhel_qemu_kvm.py), and everybody else on the machine sees nothing of
# it: it lies in a mount namespace that ends with the command. Needs root, and QEMU of Debian for x86_64.
set -euo pipefail

double="$(realpath "$(dirname "$0")/../tests/unit/qemu/rhel_qemu_kvm.py")"
emulator=/usr/bin/qemu-system-x86_64

if [ "${1:-}" != --inside ]; then
    exec unshare --mount --propagation private "$0" --inside "$@"
fi
shift

scratch=/mnt
mount -t tmpfs tmpfs "$scratch"
# beside the files that belong to it
mkdir -p "$scratch/usr/bin" "$scratch/libexec"
ln -s /usr/share /usr/lib "$scratch/usr/"
touch "$scratch/usr/bin/qemu-system-x86_64" "$scratch/nothing"
mount --bind "$emulator" "$scratch/usr/bin/qemu-system-x86_64"
cp "$double" "$scratch/qemu-kvm.py"
# libvirt starts it with an environment of its own
cat >"$scratch/libexec/qemu-kvm" <<END
#!/bin/sh
RHEL=${RHEL:-9} RHEL_REAL=$scratch/usr/bin/qemu-system-x86_64 exec /usr/bin/python3 $scratch/qemu-kvm.py "\$@"
END
chmod 755 "$scratch" "$scratch/libexec/qemu-kvm"
mount -t overlay overlay -o "lowerdir=$scratch/libexec:/usr/libexec" /usr/libexec
# a link to one that cannot be executed is none, either
for other in /usr/bin/qemu-system-*; do
    [ -L "$other" ] || mount --bind "$scratch/nothing" "$other"
done
exec "$@"
