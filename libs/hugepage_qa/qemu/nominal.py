"""A probe machine before it has booted: what its board, memory and kernel make of it."""

from collections.abc import Mapping
from itertools import accumulate

from hugepage_qa.oracle.architecture import Machine, Node, find_mmu
from hugepage_qa.qemu.boards import Board, find_board, find_cpu
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.sizes import KIB, MIB, Span

#: what the kernel keeps of each node for itself: struct pages, its image, firmware tables
_OWN_SHARE = 1 / 32
_OWN_FIXED = 64 * MIB

#: kernel image and initramfs lie at the start of memory, or at most so much above it
_IMAGE_REACH = 256 * MIB

_BASE_PAGES = {
    "CONFIG_PPC_64K_PAGES": 64 * KIB,
    "CONFIG_PPC_4K_PAGES": 4 * KIB,
    "CONFIG_ARM64_64K_PAGES": 64 * KIB,
    "CONFIG_ARM64_16K_PAGES": 16 * KIB,
}


def nominal_machine(kernel: KernelImage, cpu: str | None, memory: tuple[int, ...], cpus: int = 1) -> Machine:
    """Return the probe machine that these would make; ``memory`` is in bytes for each NUMA node.

    Raises InputError for an architecture or CPU that there is no board for.
    """
    board = find_board(kernel.architecture)
    model = find_cpu(board, cpu)
    kind = model.mmu if model.mmu in ("radix", "hash") else None
    nodes = tuple(_node(number, spans) for number, spans in enumerate(ram_spans(board, memory)))
    return Machine(
        architecture=kernel.architecture,
        mmu=find_mmu(kernel.architecture, _base_page(board, kernel.config or {}), kind),
        features=model.features,
        version=kernel.version,
        nodes=nodes,
        occupied=(Span(board.ram_start, board.ram_start + _IMAGE_REACH),),
        cpus=cpus,
        total_ram=sum(node.managed for node in nodes),
        config=kernel.config,
    )


def ram_spans(board: Board, memory: tuple[int, ...]) -> list[tuple[Span, ...]]:
    """Return where ``board`` puts the RAM of each node: one after the other, around the hole where it has one."""
    ends = list(accumulate(memory))
    return [_around_hole(board, end - size, end, ends[-1]) for size, end in zip(memory, ends, strict=True)]


def _around_hole(board: Board, start: int, end: int, total: int) -> tuple[Span, ...]:
    if board.ram_hole is None or total < board.ram_hole[0]:
        spans = [Span(start, end)]
    else:
        _, stop, resume = board.ram_hole
        low = Span(start, min(end, stop))
        high = Span(max(start, stop) - stop + resume, end - stop + resume)
        spans = [low, high]
    return tuple(
        Span(span.start + board.ram_start, span.end + board.ram_start) for span in spans if span.end > span.start
    )


def _node(number: int, spans: tuple[Span, ...]) -> Node:
    size = sum(span.size for span in spans)
    return Node(number, spans, size, max(0, int(size * (1 - _OWN_SHARE)) - _OWN_FIXED))


def _base_page(board: Board, config: Mapping[str, str]) -> int:
    return next((size for option, size in _BASE_PAGES.items() if config.get(option) == "y"), board.base_page)
