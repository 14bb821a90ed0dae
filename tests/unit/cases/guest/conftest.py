"""A machine that guests are described for."""

import pytest

from hugepage_qa.qemu.guest.guest_site import Site
from hugepage_qa.sizes import GIB, MIB


@pytest.fixture
def site() -> Site:
    """Return what an x86 machine with pages of 2 MiB and 1 GiB starts guests with."""
    return Site(
        architecture="x86_64",
        machine="q35",
        cpu="max",
        accelerator="tcg",
        emulator="/scratch/bin/qemu-system-x86_64",
        kernel="/cache/vmlinuz",
        initramfs="/cache/initramfs",
        words='console=ttyS0 -- sh -c "echo & <ready>"',
        directory="/scratch/guests",
        mounts={2 * MIB: "/scratch/huge-2M", GIB: "/scratch/huge-1G"},
        environment={"HUGEPAGE_QA_RUN": "0123"},
        virtiofsd="/usr/libexec/virtiofsd",
    )
