"""What to type so that guests find their pages: now, by libvirt, at each boot, and where hugetlbfs is not mounted."""

from collections.abc import Iterable, Iterator

from hugepage_qa.cases.guest.page_plan import GuestPlan, PoolPlan
from hugepage_qa.kernel.tree import size_name
from hugepage_qa.sizes import GIB, MIB, format_size

#: the page size of s390x, and of no other architecture that has guests
_S390X = MIB


def advice(plan: GuestPlan, default_page: int | None) -> Iterator[str]:
    """Yield lines for an administrator, commands indented; none where nothing is to be done.

    ``default_page`` is the size whose pool vm.nr_hugepages is, None where that is not known.
    """
    short = [pool for pool in plan.pools if pool.missing]
    if short:
        yield "reserve them now, as root:"
        for pool in short:
            yield f"  echo {pool.wanted} >{pool.file}"
        yield "or by libvirt:"
        for pool in short:
            yield f"  {_allocpages(pool)}"
        yield "and at each boot, on the kernel command line:"
        yield from (f"  {words}" for words in _boot_words(short))
        yield from _sysctl(short, default_page)
        yield "then look what came of it, as the kernel reserves no more than it finds:"
        yield "  grep Huge /proc/meminfo"
    if any(pool.pool.size >= GIB for pool in short):
        yield "pages of 1G and more are seldom found in one piece once a machine has run: reserve them at boot"
    if not plan.is_held_against_a_host and any(pool.pool.size == _S390X for pool in plan.pools):
        yield "on s390x KVM has to be loaded with hpage=1: kvm.hpage=1 on the kernel command line"
    yield from _mounts(plan.unmounted)


def _allocpages(pool: PoolPlan) -> str:
    node = "" if pool.pool.node is None else f" --cellno {pool.pool.node}"
    return f"virsh allocpages {format_size(pool.pool.size)} {pool.wanted}{node}"


def _boot_words(short: Iterable[PoolPlan]) -> Iterator[str]:
    """Yield the words for each size; nodes can be named since Linux 5.17."""
    by_size: dict[int, list[PoolPlan]] = {}
    for pool in short:
        by_size.setdefault(pool.pool.size, []).append(pool)
    for size, pools in by_size.items():
        whole = [pool for pool in pools if pool.pool.node is None]
        pages = str(whole[0].wanted) if whole else ",".join(f"{pool.pool.node}:{pool.wanted}" for pool in pools)
        yield f"hugepagesz={format_size(size)} hugepages={pages}"


def _sysctl(short: Iterable[PoolPlan], default_page: int | None) -> Iterator[str]:
    for pool in short:
        if pool.pool.node is None and default_page in (None, pool.pool.size):
            condition = "" if default_page else f", where {format_size(pool.pool.size)} is the default size"
            yield f"or in a file below /etc/sysctl.d, with systemd-sysctl.service enabled{condition}:"
            yield f"  vm.nr_hugepages = {pool.wanted}"


def _mounts(sizes: Iterable[int]) -> Iterator[str]:
    for size in sizes:
        point = f"/dev/{size_name(size)}"
        yield f"mount a hugetlbfs for {format_size(size)}, before the daemon of libvirt starts, which looks once:"
        yield f"  mkdir -p {point} && mount -t hugetlbfs -o pagesize={format_size(size)} hugetlbfs {point}"
        yield "  systemctl try-restart virtqemud.service libvirtd.service"
