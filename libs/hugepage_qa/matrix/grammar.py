"""The grammar of random command lines, as Hypothesis strategies.

It draws what people write and what they get wrong: every parameter, in any order, repeated, with sizes and counts in
every notation, and nonsense between them. Counts are kept so small that most machines have the memory for them;
gigantic pages may be asked for in excess, since they cannot take the kernel's last memory.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from hugepage_qa.matrix.case import BootCase, Target
from hugepage_qa.model.thp import ANON_POLICIES, GLOBAL_POLICIES, SHMEM_POLICIES, SHMEM_SIZE_POLICIES
from hugepage_qa.sizes import GIB, KIB, MIB, format_size

_MEMORY: Sequence[tuple[int, ...]] = (
    (2 * GIB,),
    (GIB, GIB),
    (GIB, 0),
    (6 * GIB,),
    (3 * GIB, 4 * GIB),
    (512 * MIB,) * 4,
)
_MOST_WORDS = 7
_MOST_COUNT = 40
_BAD_SIZES = ("3M", "0", "", "huge", "-2M", "4K", "1T", "16E")
_BAD_COUNTS = ("", "many", "-1", "0x10", "1:", ":1", "0:1,2", "0:1,,1:1", "7:1", "9999999:1", "1;1")
_MISSPELT = (
    "transparent_hugepages=never",
    "hugepage=8",
    "hugepage_sz=2M",
    "default_hugepagesize=2M",
    "thp_anons=2M:never",
)
_BYSTANDERS = ("quiet", "nokaslr", "loglevel=7", "no_such_parameter=1")


def boot_cases(target: Target, name: str = "/random") -> st.SearchStrategy[BootCase]:
    """Return a strategy for cases on machines of ``target``'s kind."""
    single = st.sampled_from([memory for memory in _MEMORY if len(memory) == 1])
    memory = single if target.architecture == "s390x" else st.sampled_from(_MEMORY)
    words = st.lists(_word(target), min_size=1, max_size=_MOST_WORDS)
    return st.builds(
        lambda words, memory, cpus: BootCase(
            name=name,
            architecture=target.architecture,
            cpu=target.cpu,
            words=" ".join(words),
            memory=memory,
            cpus=cpus,
            source="random",
        ),
        words,
        memory,
        st.sampled_from((1, 1, 1, 2)),
    )


def _word(target: Target) -> st.SearchStrategy[str]:
    hugetlb = st.one_of(
        _named("hugepages", _count()),
        _named("hugepagesz", _size(target)),
        _named("default_hugepagesz", _size(target)),
    )
    others = st.one_of(
        _named("transparent_hugepage", st.sampled_from((*GLOBAL_POLICIES, "on", "Never", ""))),
        _named("thp_anon", _size_policies(target, ANON_POLICIES)),
        _named("thp_shmem", _size_policies(target, SHMEM_SIZE_POLICIES)),
        _named("transparent_hugepage_shmem", st.sampled_from((*SHMEM_POLICIES, "huge"))),
        _named("transparent_hugepage_tmpfs", st.sampled_from((*SHMEM_POLICIES, "huge"))),
        _named("hugetlb_free_vmemmap", st.sampled_from(("on", "off", "1", "0", "y", "perhaps", ""))),
        _named("hugetlb_cma", st.sampled_from(("0", "64M", "1G", "1500M", "0:1G", "1:1G", "9:1G", "0:1G,1:2G", "x"))),
        _named("hugepage_alloc_threads", st.sampled_from(("0", "1", "3", "0x2", "few"))),
        _named("hugetext", st.sampled_from(("0", "1", "2", "3", "4", "x"))),
        st.sampled_from((*_MISSPELT, *_BYSTANDERS)),
    )
    # hugetlb parameters act on each other, the others hardly do
    return st.one_of(hugetlb, hugetlb, others)


def _named(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    # the kernel takes - and _ for the same
    names = st.sampled_from((name, name, name, name.replace("_", "-")))
    return st.builds(lambda name, value: f"{name}={value}", names, values)


def _size(target: Target) -> st.SearchStrategy[str]:
    sizes = tuple(target.mmu.hugetlb)
    return st.one_of(
        st.sampled_from(sizes).flatmap(_spelt),
        st.sampled_from(sizes).flatmap(_spelt),
        st.sampled_from(_BAD_SIZES),
    )


def _spelt(size: int) -> st.SearchStrategy[str]:
    """Return the notations of one size that the kernel takes."""
    text = format_size(size)
    return st.sampled_from((text, text, text.lower(), f"{text}B", f"{size // KIB}K", hex(size), str(size)))


def _count() -> st.SearchStrategy[str]:
    number = st.one_of(st.integers(0, 4), st.integers(0, _MOST_COUNT)).map(str)
    node_form = st.lists(st.builds("{}:{}".format, st.integers(0, 4), number), min_size=1, max_size=3).map(",".join)
    return st.one_of(number, number, node_form, st.sampled_from(_BAD_COUNTS))


def _size_policies(target: Target, policies: Sequence[str]) -> st.SearchStrategy[str]:
    sizes = (*target.mmu.anonymous_thp_sizes(), 48 * KIB, target.mmu.pmd * 2)
    size = st.sampled_from(sizes).map(format_size)
    one = st.one_of(size, size, st.builds("{}-{}".format, size, size))
    ranges = st.lists(one, min_size=1, max_size=3).map(",".join)
    policy = st.sampled_from((*policies, *policies, "sometimes"))
    entry = st.one_of(st.builds("{}:{}".format, ranges, policy), st.builds("{}:{}".format, ranges, policy), ranges)
    return st.lists(entry, min_size=1, max_size=3).map(";".join)
