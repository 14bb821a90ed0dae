"""Where memory lies: /proc/iomem, the kernel log, /proc/zoneinfo, /proc/buddyinfo. Addresses and sizes are bytes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hugepage_qa.kernel.log import LogLine
from hugepage_qa.kernel.tree import Tree, malformed
from hugepage_qa.sizes import Span

_IOMEM_LINE = re.compile(r"(?P<indent> *)(?P<first>[0-9a-f]{1,16})-(?P<last>[0-9a-f]{1,16}) : (?P<name>.*)")
_KERNEL_PARTS = frozenset({"code", "data", "rodata", "bss"})

_BRACKETS = r"\[mem (?P<first>0x[0-9a-f]{1,16})-(?P<last>0x[0-9a-f]{1,16})\]"
_NODE_RANGE = re.compile(rf" *node +(?P<node>[0-9]{{1,5}}): {_BRACKETS}")
# reserve_initrd() and relocate_initrd() in arch/x86/kernel/setup.c
_RAMDISK = re.compile(rf"(?:RAMDISK|Allocated new RAMDISK): {_BRACKETS}")
# check_for_initrd() in arch/powerpc/kernel/setup-common.c: addresses in the kernel's linear mapping, the end exclusive
_POWER_INITRD = re.compile(r"Found initrd at (?P<start>0x[0-9a-f]{1,16}):(?P<end>0x[0-9a-f]{1,16})")
_POWER_LINEAR_MAPPING = 0xC000_0000_0000_0000

_ZONE = re.compile(r"Node (?P<node>[0-9]{1,5}), zone +(?P<name>\S+)")
_ZONE_PAGES = re.compile(
    r" +(?P<name>pages free|min|spanned|present|managed|cma|nr_unaccepted|start_pfn:|count:|numa_[a-z]{1,20})"
    r" +(?P<number>[0-9]{1,20})"
)
# what is kept from those who may have pages of each zone and of those below it; the last may have all
_PROTECTION = re.compile(r" +protection: \((?:[0-9]{1,20}, )*(?P<number>[0-9]{1,20})\)")
_BUDDY = re.compile(_ZONE.pattern + r"(?P<counts>(?: +[0-9]{1,20})+) *")


@dataclass(frozen=True)
class MemoryMap:
    """What /proc/iomem says of memory; ``kernel`` maps code, data, rodata and bss to where they lie.

    ``reserved`` holds the ranges of that name on every level: firmware's on x86, the kernel's own on arm64.
    """

    system_ram: tuple[Span, ...]
    kernel: Mapping[str, Span]
    reserved: tuple[Span, ...]


@dataclass(frozen=True)
class Zone:
    """One zone of a node, in base pages.

    ``start_pfn`` is None for a zone without memory, ``cma`` before 5.13, which does not show it. ``free`` leaves out
    ``listed``, which processors have in lists of their own; since 5.14 huge pages, too. It has what a confidential
    guest has not accepted yet, ``unaccepted``, which is on no free list. Of what is free it keeps as many as ``kept``
    from programs (__zone_watermark_ok() in mm/page_alloc.c): its watermark "min", and what those who can have memory of
    the zones above must leave to those who cannot. ``allocated`` are its counts by who wanted memory where, such as
    numa_hit, without which a kernel has no nodes.
    """

    node: int
    name: str
    free: int
    spanned: int
    present: int
    managed: int
    start_pfn: int | None
    cma: int | None = None
    listed: int = 0
    unaccepted: int = 0
    kept: int = 0
    allocated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FreeBlocks:
    """Free blocks of one zone: ``counts[order]`` blocks of 2**order base pages."""

    node: int
    zone: str
    counts: tuple[int, ...]


def read_memory_map(tree: Tree) -> MemoryMap | None:
    """Return the memory map, or None without /proc/iomem or without the right to see addresses (all read as zero).

    Raises InputError for a malformed line.
    """
    text = tree.read("proc/iomem")
    entries = _iomem_entries(text or "")
    if not any(area.end > 1 for _, area in entries):
        return None
    return MemoryMap(
        # memory that a driver added is "System RAM (kmem)"
        system_ram=tuple(area for name, area in entries if name.startswith("System RAM")),
        kernel={
            part: area
            for name, area in entries
            if name.startswith("Kernel ") and (part := name.removeprefix("Kernel ")) in _KERNEL_PARTS
        },
        reserved=tuple(area for name, area in entries if name.lower() == "reserved"),
    )


def early_node_ranges(lines: Iterable[LogLine]) -> dict[int, tuple[Span, ...]]:
    """Return node -> the ranges of "Early memory node ranges" in the log (free_area_init()); empty without them.

    This is all memory that the kernel manages, its own image included, and the same on every architecture.
    """
    found: dict[int, list[Span]] = {}
    for line in lines:
        match = _NODE_RANGE.fullmatch(line.text)
        if match:
            found.setdefault(int(match["node"]), []).append(_inclusive(match))
    return {node: tuple(areas) for node, areas in sorted(found.items())}


def initrd_ranges(lines: Iterable[LogLine]) -> tuple[Span, ...]:
    """Return where the log says the initrd lies, first the boot loader's place, then where the kernel moved it.

    Only x86 and powerpc log it; elsewhere this is empty.
    """
    found = []
    for line in lines:
        if match := _RAMDISK.fullmatch(line.text):
            found.append(_inclusive(match))
        elif match := _POWER_INITRD.match(line.text):
            start, end = (int(match[name], 16) & ~_POWER_LINEAR_MAPPING for name in ("start", "end"))
            found.append(Span(start, end))
    return tuple(found)


def read_zones(tree: Tree) -> tuple[Zone, ...]:
    """Return every zone of /proc/zoneinfo, empty ones too; raises InputError for a zone without its sizes."""
    path = "proc/zoneinfo"
    drafts: list[_ZoneDraft] = []
    for number, line in enumerate((tree.read(path) or "").split("\n"), start=1):
        if header := _ZONE.match(line):
            drafts.append(_ZoneDraft(number, int(header["node"]), header["name"]))
        elif drafts and (pages := _ZONE_PAGES.fullmatch(line.rstrip())):
            drafts[-1].add(pages["name"], int(pages["number"]))
        elif drafts and (kept := _PROTECTION.fullmatch(line.rstrip())):
            drafts[-1].add("protection", int(kept["number"]))
    return tuple(draft.finish(path) for draft in drafts)


def free_pages(tree: Tree) -> int:
    """Return the base pages that are free, those in lists of processors, too, which MemFree leaves out."""
    return sum(zone.free + zone.listed for zone in read_zones(tree))


def read_free_blocks(tree: Tree) -> tuple[FreeBlocks, ...]:
    """Return the lines of /proc/buddyinfo; raises InputError for a malformed one."""
    path = "proc/buddyinfo"
    blocks = []
    for number, line in enumerate((tree.read(path) or "").split("\n"), start=1):
        if not line.strip():
            continue
        match = _BUDDY.fullmatch(line)
        if match is None:
            malformed(path, number, line, "a line such as 'Node 0, zone DMA 1 0 2'")
        blocks.append(FreeBlocks(int(match["node"]), match["name"], tuple(map(int, match["counts"].split()))))
    return tuple(blocks)


@dataclass
class _ZoneDraft:
    """A zone while its lines are read; ``line`` is where it starts."""

    line: int
    node: int
    name: str
    pages: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, pages: int) -> None:
        # one of each, but a count of each processor
        self.pages[name] = pages + (self.pages.get(name, 0) if name == "count:" else 0)

    def finish(self, path: str) -> Zone:
        missing = {"pages free", "spanned", "present", "managed"} - self.pages.keys()
        if missing:
            malformed(path, self.line, f"Node {self.node}, zone {self.name}", f"a zone with {sorted(missing)}")
        return Zone(
            node=self.node,
            name=self.name,
            free=self.pages["pages free"],
            spanned=self.pages["spanned"],
            present=self.pages["present"],
            managed=self.pages["managed"],
            # a zone without memory has none since 4.15, and 0 before
            start_pfn=self.pages.get("start_pfn:") if self.pages["present"] else None,
            cma=self.pages.get("cma"),
            listed=self.pages.get("count:", 0),
            unaccepted=self.pages.get("nr_unaccepted", 0),
            kept=self.pages.get("min", 0) + self.pages.get("protection", 0),
            allocated={name: pages for name, pages in self.pages.items() if name.startswith("numa_")},
        )


def _iomem_entries(text: str) -> list[tuple[str, Span]]:
    entries = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        match = _IOMEM_LINE.fullmatch(line)
        if match is None or int(match["first"], 16) > int(match["last"], 16):
            malformed("proc/iomem", number, line, "a line such as '00100000-7fffffff : System RAM'")
        entries.append((match["name"], _inclusive(match)))
    return entries


def _inclusive(match: re.Match[str]) -> Span:
    """Return the range of ``match``, whose last address still belongs to it."""
    return Span(int(match["first"], 16), int(match["last"], 16) + 1)
