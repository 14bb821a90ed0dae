"""Programs that are executed while memory is in huge pages: their arguments, and where they have files mapped."""

import errno
import mmap
import os

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.khugepaged_clock import quicken
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.cases.places import expect_random
from hugepage_qa.cases.thp_memory import mount_tmpfs, pmd_size
from hugepage_qa.cases.thp_policy import set_policy
from hugepage_qa.kernel.uapi import RLIM_INFINITY
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.sizes import MIB

PROGRAMS = Area("thp/programs", sizes=Sizes.ONCE)

_RLIMIT_STACK = 3
#: include/uapi/linux/binfmts.h MAX_ARG_STRLEN: base pages of one argument; fs/exec.c bprm_stack_limits(): bytes of all
_LONGEST, _MOST = 32, 6 * MIB
_POINTER = 8
_ROUNDS = 8


@PROGRAMS.case(
    "a program gets arguments as large as they can be, in huge pages or not, and more of them are E2BIG",
    "execve(2) Limits on size of arguments and environment; fs/exec.c (CVE-2011-0999)",
)
def largest_arguments(live: Live) -> None:
    set_policy(live, "always")
    quicken(live)
    actor = live.actor()
    # a quarter of it, and no more than _MOST, may be arguments
    actor.call("setrlimit", _RLIMIT_STACK, live.host.uapi.pack("QQ", 8 * _MOST, RLIM_INFINITY))
    length = _LONGEST * live.base_page
    # one less: the environment is among them
    count = _MOST // (length + _POINTER) - 1
    for _round in range(_ROUNDS):
        # the last byte ends it
        live.expect(f"of {count} arguments, those that changed", 0, actor.exec("", count, length - 1))
        live.expect_errno(errno.E2BIG, actor.exec, "", count + 2, length - 1)


@PROGRAMS.case(
    "a file that is mapped where huge pages fit is at another place in each program: what alignment leaves is random",
    "Documentation/admin-guide/sysctl/vm.rst mmap_rnd_bits; mm/huge_memory.c thp_get_unmapped_area()",
)
def random_addresses_of_files(live: Live) -> None:
    size = pmd_size(live)
    actor = live.actor()
    for directory in (live.host.disk("ext4"), mount_tmpfs(live, "always")):
        file = live.open(actor, directory, os.O_RDWR | live.host.uapi.o_tmpfile)
        actor.call("ftruncate", file, 2 * size)

        def mapped(file: int = file) -> Memory:
            address = actor.mmap(2 * size, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file)
            return Memory(live, actor, address, 2, size)

        expect_random(live, actor, mapped, size)


class ThpPrograms(LiveTest):
    """Programs that are executed.

    :avocado: enable
    """

    def test_programs(self) -> None:
        """Every case, once for the machine."""
        self.run_area(PROGRAMS)
