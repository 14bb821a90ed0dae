"""Objects of the caches of the kernel."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.slab import SLABINFO, read_active_objects
from hugepage_qa.kernel.tree import CapturedTree

SHOWN = """\
slabinfo - version: 2.1
# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount>
anon_vma             120    156    104   39    1 : tunables    0    0    0 : slabdata      4      4      0
mm_struct              0      0   1536   21    8 : tunables    0    0    0 : slabdata      0      0      0
"""


def test_active_objects_by_cache() -> None:
    assert read_active_objects(CapturedTree({SLABINFO: SHOWN})) == {"anon_vma": 120, "mm_struct": 0}


def test_a_kernel_may_have_no_such_file() -> None:
    assert read_active_objects(CapturedTree({})) == {}


@pytest.mark.parametrize("line", ["anon_vma", "anon_vma many 156", "anon_vma -1 156"])
def test_a_line_of_another_form_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"^/proc/slabinfo, line 5"):
        read_active_objects(CapturedTree({SLABINFO: f"{SHOWN}{line}\n"}))
