#!/bin/bash
# The first boot of a system machine: install the boot loader as the distribution does, then power off.
#
# Runs as init, after the distribution's initramfs. The second disk holds /etc/default/grub.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
target=@GRUB_TARGET@

say_and_power_off() {
    echo "lab-finish: status $?"
    sync
    mount -o remount,ro / || true
    echo o >/proc/sysrq-trigger
    # init must not return before the power is off: the kernel would panic
    sleep 60
}
trap say_and_power_off EXIT

mount -o remount,rw /
tr -d '\0' </dev/disk/by-id/virtio-settings >/etc/default/grub
mkfs.vfat -n ESP /dev/disk/by-partlabel/esp
mkdir -p /boot/efi
mount -t vfat /dev/disk/by-partlabel/esp /boot/efi
# --removable: the firmware of a throwaway machine remembers no boot entries
grub-install --target="$target" --efi-directory=/boot/efi --removable --no-nvram
update-grub
umount /boot/efi
rm -f "$0"
