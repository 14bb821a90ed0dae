"""Guests whose memory is huge pages of the machine, under QEMU alone and under libvirt."""
