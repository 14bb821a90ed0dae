"""The domains that the libvirt of this machine knows, read-only."""

from dataclasses import dataclass
from typing import Any

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.guest.guest_site import NotHere
from hugepage_qa.qemu.guest.libvirt_host import import_libvirt


@dataclass(frozen=True)
class DefinedDomain:
    """A domain: what it is from its next start on, and whether it runs."""

    xml: bytes
    is_running: bool


def defined_domain(name: str) -> DefinedDomain:
    """Return the domain ``name`` of the daemon that runs here, which LIBVIRT_DEFAULT_URI may name.

    Raises InputError without libvirt, without such a domain, and where the daemon does not answer.
    """
    try:
        libvirt = import_libvirt()
    except NotHere as error:
        raise InputError(f"--domain {name}: {error}") from error
    connection: Any = None
    try:
        connection = libvirt.openReadOnly(None)
        domain = connection.lookupByName(name)
        return DefinedDomain(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE).encode(), bool(domain.isActive()))
    except libvirt.libvirtError as error:
        raise InputError(f"--domain {name}: {error}") from error
    finally:
        if connection is not None:
            connection.close()
