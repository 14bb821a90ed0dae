"""Boot loaders: how the kernel arguments of the machine under test are read, added and removed."""

from hugepage_qa.machine.boot_loader.find_loader import find_boot_loader
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost, BootLoader

__all__ = ["ArgumentsLost", "BootLoader", "find_boot_loader"]
