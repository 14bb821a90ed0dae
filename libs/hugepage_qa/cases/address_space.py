"""How much address space a process has, of each kind: by its own account, and by its mappings."""

from hugepage_qa.cases.live import Live
from hugepage_qa.cases.process_counters import process_status
from hugepage_qa.kernel.smaps import MemoryMapping, read_smaps
from hugepage_qa.machine.host import ObservedTree
from hugepage_qa.process.actor import Actor

#: of all processes together, and of the account of none (get_gate_vma() of x86 and arm)
_OF_THE_KERNEL = "[vsyscall]", "[vectors]"
#: VmFlags of /proc/PID/smaps: of a stack, which grows downwards, and of a shadow stack (is_stack_mapping())
_OF_STACKS = frozenset({"gd", "ss"})
#: the sum of two lines of status
CODE = "VmExe and VmLib"


def expect_as_mapped(live: Live, actor: Actor) -> int:
    """Expect the address space of ``actor``, of each kind, to be that of its mappings, and return VmSize in bytes.

    Data is what is private and may be written, without stacks, and code what may be executed and not written
    (vm_stat_account(), is_data_mapping(), is_exec_mapping() in mm/mmap.c). How much of the code is VmExe is what the
    program says of itself (task_mem() in fs/proc/task_mmu.c).
    """
    found = read_smaps(ObservedTree(live.host), actor.pid) or ()
    mappings = [mapping for mapping in found if mapping.path not in _OF_THE_KERNEL]
    sizes = address_space(live, actor)
    expected = {
        "VmSize": sum(mapping.size for mapping in mappings),
        "VmData": sum(mapping.size for mapping in mappings if _is_data(mapping)),
        "VmStk": sum(mapping.size for mapping in mappings if _is_stack(mapping)),
        CODE: sum(mapping.size for mapping in mappings if _is_code(mapping)),
    }
    live.expect("address space in status", expected, {name: sizes.get(name) for name in expected})
    return sizes.get("VmSize", 0)


def address_space(live: Live, actor: Actor) -> dict[str, int]:
    """Return the sizes of /proc/PID/status in bytes, with the sum of VmExe and VmLib by the name ``CODE``."""
    sizes = process_status(live, actor).sizes
    return {**sizes, CODE: sizes["VmExe"] + sizes["VmLib"]}


def _is_stack(mapping: MemoryMapping) -> bool:
    return not _OF_STACKS.isdisjoint(mapping.flags)


def _is_data(mapping: MemoryMapping) -> bool:
    return mapping.permissions[1] == "w" and not mapping.is_shared and not _is_stack(mapping)


def _is_code(mapping: MemoryMapping) -> bool:
    return mapping.permissions[1:3] == "-x" and not _is_stack(mapping)
