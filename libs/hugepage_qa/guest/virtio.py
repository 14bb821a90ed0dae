"""Drivers of virtio that a guest's image has as modules."""

# in the order in which they need each other
_BUS = ("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci")
#: what virtio_net needs
NETWORK = ("failover", "net_failover", "virtio_net")


def load_drivers(*names: str) -> str:
    """Return the command of a guest's shell that loads the bus and the drivers ``names``, where they are modules."""
    load = "[ ! -e /modules/$module.ko ] || insmod /modules/$module.ko"
    return f"for module in {' '.join((*_BUS, *names))}; do {load}; done"
