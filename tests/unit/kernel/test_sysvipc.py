"""System V shared memory segments."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.proc_tables import Segment, read_segment_sizes, read_segments
from hugepage_qa.kernel.tree import CapturedTree

# as Linux 6.18 prints it
TEXT = """\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime \
     ctime                   rss                  swap
1213293814         13   600               2097152 25846     0      0     0     0     0     0          0          0 \
1795265411                     0                     0
       -1          2   600                  4096     1     0      0     0     0     0     0          0          0 \
1795265411                     0                     0
"""


def test_segments() -> None:
    tree = CapturedTree({"proc/sysvipc/shm": TEXT})
    assert read_segments(tree) == (Segment(0x485164F6, 13), Segment(0xFFFFFFFF, 2))


def test_a_kernel_without_them() -> None:
    assert read_segments(CapturedTree({})) == ()


@pytest.mark.parametrize("line", ["1", "x 2", "1 x"])
def test_malformed(line: str) -> None:
    with pytest.raises(InputError, match="/proc/sysvipc/shm, line 2: "):
        read_segments(CapturedTree({"proc/sysvipc/shm": f"key shmid\n{line}\n"}))


def test_sizes_of_segments() -> None:
    tree = CapturedTree({"proc/sysvipc/shm": TEXT.replace("1795265411                     0", "1795265411 8192", 1)})
    assert read_segment_sizes(tree) == {13: (2097152, 8192), 2: (4096, 0)}
    assert read_segment_sizes(CapturedTree({})) == {}


def test_a_segment_without_its_sizes_is_named() -> None:
    with pytest.raises(InputError, match="/proc/sysvipc/shm, line 2: "):
        read_segment_sizes(CapturedTree({"proc/sysvipc/shm": "key shmid\n1 2 600\n"}))
