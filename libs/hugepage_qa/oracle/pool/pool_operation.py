"""What an operation on the pools is: a line that a person can read, and a step of the model.

Pages are counted in pages of the mapping or file, sizes and limits are bytes. Things are named by whoever makes them.
An area is a place in the address space that nothing else uses; what fork() copies lies in an area of the same number.
"""

import errno
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from hugepage_qa.oracle.pool.pool_files import AccessFault, NeverEnds
from hugepage_qa.oracle.pool.pool_machine import PoolMachine
from hugepage_qa.sizes import GIB, format_size

#: what came of an operation: "ok", the name of an errno or of a signal, or the number that was read
Outcome = int | str
#: of an operation that must not be tried
NEVER_ENDS = "never ends"

#: pages that an area has room for
AREA_PAGES = 8

_BYTES = frozenset({"page_size", "least", "most", "limit"})
#: below what 39 bits of address leave to a process, above where programs lie that are not position independent
_AREAS_FROM = 64 * GIB
#: a page table of 2M pages covers 1 GiB: areas share none
_AREA_AT_LEAST = GIB


def area_address(area: int, page_size: int, page: int) -> int:
    """Return the address of a page of an area. The areas of one program all have pages of one size."""
    return _AREAS_FROM + area * _room(page_size) + page * page_size


def area_of(address: int, page_size: int) -> tuple[int, int]:
    """Return the area of an address, and the page in it."""
    area, offset = divmod(address - _AREAS_FROM, _room(page_size))
    return area, offset // page_size


def _room(page_size: int) -> int:
    return max(_AREA_AT_LEAST, AREA_PAGES * page_size)


@dataclass(frozen=True)
class Operation(ABC):
    """One operation; as text its name and what it acts on."""

    @abstractmethod
    def apply(self, machine: PoolMachine) -> int | None:
        """Do it to the model; return what was read. Raises OSError and AccessFault."""

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [f"{name}={format_size(one) if name in _BYTES and one else repr(one)}" for name, one in values.items()]
        return f"{type(self).__name__}({', '.join(words)})"


def carry_out(operation: Operation, machine: PoolMachine) -> Outcome:
    """Apply ``operation`` to the model and return what must come of it."""
    try:
        read = operation.apply(machine)
    except OSError as error:
        return errno_name(error)
    except AccessFault as fault:
        return fault.signal.name
    except NeverEnds:
        return NEVER_ENDS
    return "ok" if read is None else read


def errno_name(error: OSError) -> str:
    """Return the name of an error number: ENOMEM."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))
