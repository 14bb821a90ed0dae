"""What the machines of these tests are: all records were made on x86_64."""

from hugepage_qa.machine.backend import MachineKind
from hugepage_qa.sizes import KIB

X86_64 = MachineKind("x86_64", 4 * KIB)
