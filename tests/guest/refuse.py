"""Guests that cannot have their pages are refused, with the reason, and nothing is left of them.

After each refusal the guest is off, the pool and hugetlbfs are as before, and the same guest starts once the pages are
there.
"""

from hugepage_qa.cases.case import Sizes
from hugepage_qa.cases.control_group import Version, new_group
from hugepage_qa.cases.guest import guest_machine as drivers
from hugepage_qa.cases.guest.guest_machine import LIBVIRT_WITHOUT_MOUNTS
from hugepage_qa.cases.guest.guests import NO_NODES, GuestArea, Guests, guest_case, needs
from hugepage_qa.cases.guest.refusal import Meaning
from hugepage_qa.cases.hugetlb_group import HugetlbGroup
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.pages_of_a_node import missing_node
from hugepage_qa.kernel.counters import read_meminfo
from hugepage_qa.plugins.guest_test import GuestTest
from hugepage_qa.qemu.guest.domain_xml import with_tuning
from hugepage_qa.qemu.guest.driver import GuestError, State
from hugepage_qa.qemu.guest.guest_description import Access, Cell, Source, whole_pages
from hugepage_qa.sizes import KIB

QEMU, LIBVIRT = GuestArea("guest/refuse", drivers.QEMU), GuestArea("guest/refuse", drivers.LIBVIRT)
case = guest_case(QEMU, LIBVIRT)

SHORT = "mm/hugetlb.c hugetlb_reserve_pages(): ENOMEM; QEMU prealloc=on; libvirt.org/formatdomain.html memoryBacking"


@case("one page short is short", SHORT)
def one_page_short(_live: Live, guests: Guests) -> None:
    guest = guests.new(guests.cell(2))
    guests.expect_refused_then_started(guest, guest.pages - 1)


@guest_case(LIBVIRT)("why a guest was refused is in its log, too", SHORT, sizes=Sizes.DEFAULT)
def told_in_the_log(live: Live, guests: Guests) -> None:
    guest = guests.new()
    live.reserve(guest.pages - 1)
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
    guests.expect_meaning(Meaning.SHORT_OF_PAGES, guest.said)
    live.expect_pool(nr=guest.pages - 1, free=guest.pages - 1)


@case("half of the pages are given back when the other half is not there", SHORT)
def half_short(_live: Live, guests: Guests) -> None:
    guest = guests.new(guests.cell(2))
    guests.expect_refused_then_started(guest, guest.pages // 2)


@case("an empty pool has no page for a guest, however much memory is free", SHORT)
def empty_pool(_live: Live, guests: Guests) -> None:
    guests.expect_refused_then_started(guests.new(), 0)


@case("a shared memfd of huge pages is refused like private files", f"{SHORT}; QEMU memory-backend-memfd")
def memfd_short(_live: Live, guests: Guests) -> None:
    guest = guests.new(guests.cell(2), source=Source.MEMFD, access=Access.SHARED)
    guests.expect_refused_then_started(guest, guest.pages - 1)


@case("with THP always at hand, a guest on huge pages of the pool does not fall back to them", SHORT)
def no_fallback_to_transparent_pages(live: Live, guests: Guests) -> None:
    live.set_knob("sys/kernel/mm/transparent_hugepage/enabled", "always")
    guest = guests.new()
    guests.expect_refused_then_started(guest, guest.pages - 1)
    guest.expect_no_transparent_pages()


@case("a guest with more memory than the machine is refused and takes nothing", SHORT, sizes=Sizes.DEFAULT)
def more_than_the_machine(live: Live, guests: Guests) -> None:
    pages = whole_pages(2 * read_meminfo(live.host)["MemTotal"], live.size)
    live.reserve(guests.pages)
    guest = guests.new(Cell(pages * live.size, live.size))
    guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guests.pages, free=guests.pages)


@case("of two guests that start at once with pages for one, one runs and the other is refused", SHORT)
def two_guests_race(live: Live, guests: Guests) -> None:
    both = [guests.new(name=name) for name in ("first", "second")]
    pages = both[0].pages
    live.reserve(2 * pages - 1)
    refusals = guests.race(*both)
    # mmap(2) reserves all pages of a guest or none, under hugetlb_lock: neither can keep the other from its pages
    live.expect("guests that run", 1, refusals.count(""))
    for guest, refusal in zip(both, refusals, strict=True):
        guest.expect_state(State.OFF if refusal else State.PAUSED)
        if refusal:
            guests.expect_meaning(Meaning.SHORT_OF_PAGES, refusal)
    running = refusals.count("")
    live.expect_pool(nr=2 * pages - 1, free=2 * pages - 1 - running * pages)
    live.reserve(2 * pages)
    for guest, refusal in zip(both, refusals, strict=True):
        if refusal:
            guest.start()
    live.expect_pool(nr=2 * pages, free=0)


@case(
    "a page size that the machine does not have is refused",
    "libvirt.org/formatdomain.html hugepages; memfd_create(2) MFD_HUGETLB: ENODEV",
)
def absent_page_size(live: Live, guests: Guests) -> None:
    absent = next(live.size << shift for shift in range(1, 64) if live.size << shift not in live.sizes)
    live.reserve(guests.pages)
    try:
        guest = guests.new(Cell(absent, absent), source=Source.MEMFD, access=Access.SHARED)
    except GuestError as error:
        guests.expect_meaning(Meaning.NO_SUCH_SIZE, str(error))
    else:
        guests.expect_refused(Meaning.NO_SUCH_SIZE, guest.start)
        guest.expect_state(State.OFF)
    live.expect_pool(nr=guests.pages, free=guests.pages)


@guest_case(QEMU)("a guest whose memory is to be in a directory that is not there is refused", SHORT)
def absent_directory(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()
    mount = guests.site.mounts[live.size]
    guest.define_as(guest.definition.replace(mount, f"{mount}/absent/directory"))
    guests.expect_refused(Meaning.NO_SUCH_DIRECTORY, guest.start)
    guests.expect_all_back(guest)
    guest.define()
    guests.expect_started(guest)


@guest_case(LIBVIRT)("pages of a size of 0 are refused", "libvirt.org/formatdomain.html hugepages page size")
def size_of_nothing(live: Live, guests: Guests) -> None:
    guest = guests.new_with_pages()

    def start_on_pages_of_nothing() -> None:
        # older ones refuse the start, and newer ones the definition
        guest.define_as(guest.definition.replace(f'size="{live.size // KIB}"', 'size="0"'))
        guest.start()

    guests.expect_refused(Meaning.NO_SUCH_SIZE, start_on_pages_of_nothing)
    guests.expect_all_back(guest)
    guest.define()
    guests.expect_started(guest)


@guest_case(LIBVIRT)(
    "without a mounted hugetlbfs libvirt refuses guests on huge pages", "libvirt src/qemu/qemu.conf.in hugetlbfs_mount"
)
def no_mount(live: Live, guests: Guests) -> None:
    live.reserve(guests.pages)
    without = Guests(live, LIBVIRT_WITHOUT_MOUNTS)
    guest = without.new(name="unmounted")
    without.expect_refused(Meaning.NO_MOUNT, guest.start)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guests.pages, free=guests.pages)
    guests.expect_started(guests.new())


@case(
    "memory that is no multiple of the page is refused, or takes whole pages",
    "QEMU backends/hostmem.c host_memory_backend_memory_complete(), since 8.2: refused; rounded up before",
)
def memory_is_no_multiple(live: Live, guests: Guests) -> None:
    # more than a page: less is refused as too little
    cell = guests.cell(2)
    pages = cell.memory // live.size
    guest = guests.new(Cell(cell.memory - live.size // 2, live.size))
    live.reserve(pages + 1)
    try:
        guest.start()
    except GuestError as error:
        guests.expect_meaning(Meaning.MISALIGNED, str(error))
        guest.expect_state(State.OFF)
        live.expect_pool(nr=pages + 1, free=pages + 1)
    else:
        live.expect_pool(nr=pages + 1, free=1)
    guest.destroy()
    live.expect_pool(nr=pages + 1, free=pages + 1)


@case("a node that the machine does not have is refused", "mbind(2): EINVAL; libvirt.org/formatdomain.html numatune")
def absent_node(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    live.reserve(guests.pages)
    guest = guests.new(Cell(guests.pages * live.size, live.size, node=missing_node(live)))
    guests.expect_refused(Meaning.NO_SUCH_NODE, guest.start)
    guest.expect_state(State.OFF)
    live.expect_pool(nr=guests.pages, free=guests.pages)


@guest_case(LIBVIRT)(
    "a node that the machine does not have is refused in each mode, for all cells and for one, also beside nodes that"
    " there are",
    "libvirt.org/formatdomain.html numatune memory mode, memnode mode",
    sizes=Sizes.DEFAULT,
)
def absent_node_in_each_mode(live: Live, guests: Guests) -> None:
    needs(bool(live.nodes), NO_NODES)
    memory = guests.pages * live.size
    live.reserve(guests.pages)
    # cells need what can be plugged into them
    guest = guests.new(Cell(memory, live.size), max_memory=2 * memory)
    last = max(live.nodes)
    for mode in ("strict", "interleave", "preferred", "restrictive"):
        beside = f'<memory mode="{mode}" nodeset="{last}"/>' if mode == "restrictive" else ""
        # of those that are preferred libvirt takes one alone
        for nodes in (f"{last + 1}", f"{last + 1}-{last + 2}", f"{last}-{last + 1}")[: 1 if mode == "preferred" else 3]:
            of_all = f'<memory mode="{mode}" nodeset="{nodes}"/>'
            of_one = f'{beside}<memnode cellid="0" mode="{mode}" nodeset="{nodes}"/>'
            for tuning in (of_all, of_one):
                with live.about(tuning):
                    guest.define_as(with_tuning(guest.definition, f"<numatune>{tuning}</numatune>"))
                    guests.expect_refused(Meaning.NO_SUCH_NODE, guest.start)
                    guest.expect_state(State.OFF)
                    live.expect_pool(nr=guests.pages, free=guests.pages)
    guest.define()
    guests.expect_started(guest)


HPAGE = "sys/module/kvm/parameters/hpage"


@case(
    "where KVM of s390x is told not to back guests with huge pages, a guest on them is refused for that reason",
    "arch/s390/kvm/kvm-s390.c, module parameter hpage (0 by default)",
    sizes=Sizes.DEFAULT,
)
def kvm_without_huge_pages(live: Live, guests: Guests) -> None:
    site = guests.site
    needs(site.architecture == "s390x", f"KVM of {site.architecture} has no switch for huge pages (kvm.hpage)")
    needs(site.accelerator == "kvm", f"guests run under {site.accelerator}: only KVM has the switch kvm.hpage")
    needs((live.host.read(HPAGE) or "").strip() in ("0", "N"), "kvm.hpage is on here")
    guest = guests.new_with_pages()
    guests.expect_refused(Meaning.KVM_WITHOUT_HUGE_PAGES, guest.start)
    guests.expect_all_back(guest)


# --- control groups --------------------------------------------------------------------------------------------------
def refused_in_group(live: Live, guests: Guests, version: Version, reservations: bool) -> None:
    """Expect a guest to be refused in a group that may have one page less than it needs, whatever the pool has."""
    guest = guests.new_with_pages(guests.cell(2))
    group = HugetlbGroup(live, new_group(live, "hugetlb", version))
    limit = group.limit_reservations if reservations else group.limit
    limit(guest.pages - 1)
    guests.enter_group(group.group.path)
    try:
        guests.expect_refused(Meaning.SHORT_OF_PAGES, guest.start)
        guest.expect_state(State.OFF)
        live.expect_pool(nr=guest.pages, free=guest.pages)
        limit(guest.pages)
        guest.start()
        live.expect_pool(nr=guest.pages, free=0)
        guest.destroy()
    finally:
        guests.enter_group(None)


GROUPS = {
    1: "Documentation/admin-guide/cgroup-v1/hugetlb.rst; mm/hugetlb_cgroup.c",
    2: "Documentation/admin-guide/cgroup-v2.rst HugeTLB Interface Files; mm/hugetlb_cgroup.c",
}


@case("a guest is refused by the limit of its control group, version 1", GROUPS[1])
def limit_of_a_group_v1(live: Live, guests: Guests) -> None:
    refused_in_group(live, guests, Version.ONE, reservations=False)


@case("a guest is refused by its group's limit on reservations, version 1", GROUPS[1])
def limit_on_reservations_v1(live: Live, guests: Guests) -> None:
    refused_in_group(live, guests, Version.ONE, reservations=True)


@case("a guest is refused by the limit of its control group, version 2", GROUPS[2])
def limit_of_a_group_v2(live: Live, guests: Guests) -> None:
    refused_in_group(live, guests, Version.TWO, reservations=False)


@case("a guest is refused by its group's limit on reservations, version 2", GROUPS[2])
def limit_on_reservations_v2(live: Live, guests: Guests) -> None:
    refused_in_group(live, guests, Version.TWO, reservations=True)


class Refuse(GuestTest):
    def test_qemu(self) -> None:
        self.run_area(QEMU)

    def test_libvirt(self) -> None:
        self.run_area(LIBVIRT)
