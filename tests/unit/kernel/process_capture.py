"""Two real processes and a kernel thread, as Linux 6.18 shows them.

``HOLDER`` has 8 MiB of private hugetlb pages mapped and two touched, 4 MiB shared and one touched, a page of 1 GiB, a
page of a SysV segment, 12 MiB of anonymous THP and 8 MiB of shmem THP, in a memfd whose name holds a carriage return.
``CHILD`` was forked from it, has given itself a name with an escape sequence, a newline and a backslash, and has
written to one of the transparent huge pages. Mappings of their program and most of those of libraries are cut out.
"""

import json
from functools import cache
from pathlib import Path

from hugepage_qa.kernel.tree import CapturedTree

HOLDER, CHILD, KTHREADD = 28918, 29053, 2


@cache
def processes() -> CapturedTree:
    """Return the files of the processes."""
    return CapturedTree(json.loads(Path(__file__).with_name("processes.json").read_text(encoding="utf-8")))


def text_of(path: str) -> str:
    """Return one of the files."""
    text = processes().read(path)
    assert text is not None
    return text
