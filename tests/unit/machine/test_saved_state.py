"""The run-time state of a machine."""

from pathlib import Path

from hugepage_qa.kernel.proc_tables import Mount, Segment
from hugepage_qa.machine.saved_state import MachineState, find_segments
from hugepage_qa.machine.snapshot import Snapshot, differences

from .conftest import CGROUPS, NODES, SHM_TITLE, THP, VM, write


def test_state(machine: Path) -> None:
    write(machine / "proc/self/mounts", "none /cg cgroup2 rw 0 0\n")
    write(machine / "cg/cgroup.subtree_control", "hugetlb\n")
    (machine / "cg/hugepage-qa-1").mkdir()
    write(machine / "proc/sysvipc/shm", f"{SHM_TITLE}{0x48510001} 5 600\n1 6 600\n")
    write(machine / "proc/cgroups", CGROUPS.format(hugetlb=24))
    state = MachineState.read(machine)
    assert state.hierarchies == ("hugetlb",)
    assert state.knobs[f"{THP}/enabled"] == "madvise"
    assert state.knobs[f"{NODES}/node0/hugepages/hugepages-2048kB/nr_hugepages"] == "7"
    assert state.mounts == (Mount("/cg", "cgroup2", "rw"),)
    assert state.cgroups == ("/cg/hugepage-qa-1",)
    assert state.hugetlb_control == {"/cg": True}
    assert state.segments == find_segments(machine) == (Segment(0x48510001, 5),)
    values = state.values()
    assert values["vm/min_free_kbytes"] == "1000"
    assert values["mount /cg"] == "cgroup2 rw"
    assert values["cgroup /cg/hugepage-qa-1"] == "a directory"
    assert values["control groups of hugetlb"] == "a hierarchy of version 1"
    assert values["hugetlb in /cg"] == "handed down"
    assert values["shared memory 0x48510001"] == "segment 5"


def test_changes(machine: Path) -> None:
    before = MachineState.read(machine)
    write(machine / f"{VM}/min_free_kbytes", "2000")
    write(machine / "proc/self/mounts", "")
    after = MachineState.read(machine)
    assert differences(Snapshot(before.values()), Snapshot(after.values())) == [
        "mount /dev/hugepages: hugetlbfs rw,pagesize=2M before, absent after",
        "mount /dev/shm: tmpfs rw before, absent after",
        "vm/min_free_kbytes: 1000 before, 2000 after",
    ]
