"""Ranges of a node that gigantic pages may be made of at boot: what lies in them, and what early boot may touch."""

from collections.abc import Sequence

from hugepage_qa.oracle.architecture import Machine, Node
from hugepage_qa.sizes import GIB, MIB, Span

#: what early boot takes from the top of a node's memory: struct pages (64 of 4096 bytes) and a fixed part
_EARLY_SHARE = 64 / 4096
_EARLY_FIXED = 96 * MIB
#: what devices that cannot address more get below 4 GiB: swiotlb and the default CMA area of 64 MiB each, and some room
_LOW_LIMIT = 4 * GIB
_EARLY_LOW = 192 * MIB
#: what they get of each node by CONFIG_CMA_SIZE_MBYTES
_AREA_OF_DEVICES = 64 * MIB


def frames_of(node: Node, size: int, machine: Machine) -> list[Span]:
    """Return the aligned ranges of ``size`` bytes of ``node`` that the kernel and its initramfs do not lie in."""
    return [
        frame
        for span in _merge(node.spans)
        for frame in _frames(span, size)
        if not any(frame.overlaps(image) for image in machine.occupied)
    ]


def untouched(frames: Sequence[Span], node: Node, machine: Machine) -> list[Span]:
    """Return those of ``frames`` that no early allocation touches."""
    spans = _merge(node.spans)
    touched = [*_early(spans), *_early_low(machine), *_area_of_devices(spans, machine)]
    return [frame for frame in frames if not any(frame.overlaps(span) for span in touched)]


def _merge(spans: Sequence[Span]) -> list[Span]:
    """Return ``spans`` ascending, those that touch joined: a huge page may cross their border."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if merged and merged[-1].end >= span.start:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _frames(span: Span, size: int) -> list[Span]:
    """Return the aligned ranges of ``size`` bytes that lie in ``span``."""
    first = -(-span.start // size) * size
    return [Span(start, start + size) for start in range(first, span.end - size + 1, size)]


def _early(spans: Sequence[Span]) -> list[Span]:
    """Return what early allocations of a node may touch: memblock hands out its memory from the top."""
    return _top(spans, _EARLY_FIXED + int(sum(span.size for span in spans) * _EARLY_SHARE))


def _early_low(machine: Machine) -> list[Span]:
    """Return what is touched below 4 GiB, on whichever node that is."""
    spans = [span for node in machine.nodes for span in node.spans if span.start < _LOW_LIMIT]
    return _top(_merge([Span(span.start, min(span.end, _LOW_LIMIT)) for span in spans]), _EARLY_LOW)


def _area_of_devices(spans: Sequence[Span], machine: Machine) -> list[Span]:
    """Return where devices have memory of a node, on machines of several nodes: from 4 GiB on, at the first place.

    kernel/dma/contiguous.c dma_numa_cma_reserve(); mm/cma.c cma_alloc_mem().
    """
    if len(machine.nodes) == 1 or (machine.config or {}).get("CONFIG_CMA_SIZE_PERNUMA") != "y":
        return []
    high = [Span(max(span.start, _LOW_LIMIT), span.end) for span in spans if span.end > _LOW_LIMIT]
    return [Span(span.start, span.start + _AREA_OF_DEVICES) for span in high[:1]]


def _top(spans: Sequence[Span], size: int) -> list[Span]:
    """Return the uppermost ``size`` bytes of ``spans``, which are ascending."""
    top = []
    for span in reversed(spans):
        if size <= 0:
            break
        top.append(Span(max(span.start, span.end - size), span.end))
        size -= top[-1].size
    return top
