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


def expect_as_mapped(live: Live, actor: Actor) -> int:
    """Expect VmSize, VmData and VmStk of ``actor`` to be those of its mappings, and return VmSize in bytes.

    Data is what is private and may be written, without stacks (vm_stat_account(), is_data_mapping() in mm/mmap.c).
    """
    found = read_smaps(ObservedTree(live.host), actor.pid) or ()
    mappings = [mapping for mapping in found if mapping.path not in _OF_THE_KERNEL]
    sizes = process_status(live, actor).sizes
    expected = {
        "VmSize": sum(mapping.size for mapping in mappings),
        "VmData": sum(mapping.size for mapping in mappings if _is_data(mapping)),
        "VmStk": sum(mapping.size for mapping in mappings if _is_stack(mapping)),
    }
    live.expect("address space in status", expected, {name: sizes.get(name) for name in expected})
    return sizes.get("VmSize", 0)


def _is_stack(mapping: MemoryMapping) -> bool:
    return not _OF_STACKS.isdisjoint(mapping.flags)


def _is_data(mapping: MemoryMapping) -> bool:
    return mapping.permissions[1] == "w" and not mapping.is_shared and not _is_stack(mapping)
