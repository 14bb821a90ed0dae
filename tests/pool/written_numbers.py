"""What files of a pool that are written take for a number of pages: a decimal one, and nothing else."""

import errno
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.demotion import smaller_pool
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.tree import read_integer
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.plugins.avocado_test import LiveTest
from hugepage_qa.version import KernelVersion

NUMBERS = Area("pool/written-numbers")

SOURCES = (
    "lib/kstrtox.c kstrtoul(); mm/hugetlb_sysfs.c nr_hugepages_store_common(), nr_overcommit_hugepages_store(),"
    " demote_store()"
)
#: not decimal, or not all of it; what the base that a prefix names would make a number
_NO_NUMBERS = ("-1", "x", "1x", "1 2", "1,2", "1K", "0x", "0x1", "0X1", "0b1", "0o1", "1e0", "1.0", " ")
_OF_ALL = ("nr_hugepages", "nr_hugepages_mempolicy", "nr_overcommit_hugepages", "demote")
_GIGANTIC_SURPLUS_SINCE = KernelVersion(6, 19)
#: so many pages need two digits, of which one is none in base 8
_SEVERAL = 11


def _files(live: Live, *names: str) -> list[tuple[str, int | None]]:
    """Return the paths of those of ``names`` that a node, or the pool, has, and the node.

    Nodes come first: the pool need not give back on a node what came there (next_nid_to_alloc, next_nid_to_free).
    """
    found = []
    for node, name in product((*live.nodes, None), names):
        directory, _slash, _name = live.pool_file(name, node=node).rpartition("/")
        if name in live.host.names(directory):
            found.append((f"{directory}/{name}", node))
    return found


@NUMBERS.case(
    "what is no decimal number, or not as a whole, is EINVAL, and a number that is too large is ERANGE, in each file"
    " that takes a number of pages, of the pool and of its nodes; no page comes or goes",
    SOURCES,
    pages=1,
)
def no_numbers(live: Live) -> None:
    for path, _node in _files(live, *_OF_ALL):
        # of those that have no surplus all is refused alike
        has_surplus = not live.is_gigantic or live.kernel_version >= _GIGANTIC_SURPLUS_SINCE
        is_refused = path.endswith("overcommit_hugepages") and not has_surplus
        before = live.host.read(path)
        for text in (*_NO_NUMBERS, str(1 << 64)):
            wanted = errno.ERANGE if text.isdigit() and not is_refused else errno.EINVAL
            with live.about(f"{text!r} to {path}"):
                live.expect_errno(wanted, live.host.write, path, text)
                live.expect("what it reads as", before, live.host.observe(path))
                live.expect_pool(nr=1, free=1)


@NUMBERS.case("a number of pages that is behind a zero is decimal", SOURCES, sizes=Sizes.BUDDY)
def behind_a_zero(live: Live) -> None:
    for path, node in _files(live, "nr_hugepages", "nr_hugepages_mempolicy"):
        live.reserve(_SEVERAL, node)
        base = (read_integer(live.host, path) or 0) - _SEVERAL
        for pages in range(_SEVERAL, -1, -1):
            with live.about(f"{pages} pages more than {base} to {path}"):
                live.host.write(path, f"0{base + pages}")
                live.expect_pool(nr=pages, free=pages)


@NUMBERS.case(
    "a number of pages to demote that is behind a zero is decimal, of the pool and of a node", SOURCES, since="5.16"
)
def demoted_behind_a_zero(live: Live) -> None:
    smaller = smaller_pool(live)
    if live.before.pools[live.size].nr:
        raise CannotRun("the pool has pages that are not ours: they are reserved, and spared on each node")
    parts = live.size // smaller.size
    for path, node in _files(live, "demote"):
        for text in ("00", "08"):
            live.reserve(1, node)
            with live.about(f"{text} to {path}"):
                live.expect_success(live.host.write, path, text)
                left = 1 if text == "00" else 0
                live.expect_pool(nr=left, free=left)
                smaller.expect_pool(nr=(1 - left) * parts, free=(1 - left) * parts)
        smaller.set_nr(0)


class WrittenNumbers(LiveTest):
    def test_written_numbers(self) -> None:
        self.run_area(NUMBERS)
