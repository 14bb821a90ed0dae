"""Ranges of a block device that are made zero: what its page cache and its blocks hold in them, and beside them."""

import os
from collections.abc import Callable
from itertools import product

from hugepage_qa.cases.case import Area, Sizes
from hugepage_qa.cases.file_contents import KnownFile, is_offered
from hugepage_qa.cases.live import Live
from hugepage_qa.cases.loop_devices import attach_loop_device, need_loop_devices, sector_of
from hugepage_qa.cases.mapped_memory import Memory
from hugepage_qa.plugins.avocado_test import LiveTest

DEVICE_RANGES = Area("files/device-ranges", sizes=Sizes.ONCE, uncleared=True)

DOC = "fallocate(2); block/fops.c; mm/truncate.c truncate_inode_pages_range()"
_PAGES = 32


class _KnownDevice(KnownFile):
    """A block device of zeroes, of which is known what it must hold; its ``directory`` is its path."""

    def beside(self) -> int:
        return self._live.open(self.actor, self.directory, os.O_RDWR)


@DEVICE_RANGES.case(
    "a range of a block device that is made zero, or a hole, is zero for who reads it or has it mapped, and what is"
    " beside it is as before, from whichever sector of a page to whichever of the same page, the next or another one,"
    " whether its pages are written back, only in memory, or not there",
    f"{DOC} FALLOC_FL_ZERO_RANGE, FALLOC_FL_PUNCH_HOLE",
)
def ranges_of_a_device(live: Live) -> None:
    states: tuple[Callable[[KnownFile], object], ...] = (_in_memory, _written_back, _read_again, KnownFile.evict)
    for act in (KnownFile.zero, KnownFile.punch):
        # a device that was refused one of them by its file may refuse the other one from then on
        device, sector = _device(live)
        base, whole = live.base_page, device.contents.length
        if act is KnownFile.punch and not _has_holes(device):
            continue
        for (first, length), state, is_mapped in product(_ranges(base, sector, whole), states, (False, True)):
            device.write(0, whole)
            state(device)
            memory = _looked_at(device) if is_mapped else None
            with live.about(
                f"{act.__name__} {length} bytes at {first}, {state.__name__.strip('_')}, mapped {is_mapped}"
            ):
                act(device, first, length)
                if memory:
                    device.expect_mapped(memory)
                    memory.unmap()
                device.expect("after it")


@DEVICE_RANGES.case(
    "what is written to a block device beside a range that was made zero, or within it, through the page cache or a"
    " mapping, is there when its pages were written back and dropped, and the rest of the range is zero",
    f"{DOC} FALLOC_FL_ZERO_RANGE",
)
def written_beside_zeroes_of_a_device(live: Live) -> None:
    device, sector = _device(live)
    base, whole = live.base_page, device.contents.length
    for (first, length), is_mapped in product(_ranges(base, sector, whole), (False, True)):
        device.write(0, whole)
        device.zero(first, length)
        memory = device.map()
        with live.about(f"{length} bytes at {first}, mapped {is_mapped}"):
            beside = max(first - sector, 0), min(first + length, whole - sector)
            for place in sorted({first, first + length - sector, *beside}):
                if is_mapped:
                    device.store(memory, place, sector)
                else:
                    device.write(place, sector)
            device.expect_mapped(memory)
            memory.unmap()
            device.expect("after it")


def _device(live: Live) -> tuple[KnownFile, int]:
    """Return a device of zeroes that is a file in memory, and the bytes of its sectors. Raises CannotRun."""
    need_loop_devices(live)
    owner, length = live.actor(), _PAGES * live.base_page
    content = owner.call("memfd_create", "device", 0)
    owner.call("ftruncate", content, length)
    path = attach_loop_device(live, owner, content)
    device = _KnownDevice(live, owner, path, length)
    device.contents.resize(length)
    return device, sector_of(live, path)


def _has_holes(device: KnownFile) -> bool:
    """Tell whether the device, which is made zero for that, can have holes."""
    return is_offered(device.punch, 0, device.contents.length)


def _ranges(base: int, sector: int, whole: int) -> list[tuple[int, int]]:
    """Return ranges, first byte and length: each way in which their ends lie in pages, in one or in several."""
    half = base // 2
    places = [
        (0, sector),
        (sector, sector),
        (base - sector, sector),
        (half, half),
        (2 * base, half),
        (base - sector, 2 * sector),
        (base + half, base),
        (base, base),
        (base, base + sector),
        (2 * base, 6 * base + sector),
        (2 * base + sector, 6 * base - sector),
        (2 * base + half, 3 * base),
        (3 * base - sector, 4 * base + 2 * sector),
        (whole - base - half, base + half),
        (whole - sector, sector),
        (0, whole),
    ]
    return sorted(set(places))


def _in_memory(_device: KnownFile) -> None:
    """Leave it as it was written: nothing of it need be on the device."""


def _written_back(device: KnownFile) -> None:
    device.actor.call("fsync", device.descriptor)


def _read_again(device: KnownFile) -> None:
    device.evict()
    device.read(device.contents.length)


def _looked_at(device: KnownFile) -> Memory:
    """Map all of it, and have each page be there."""
    memory = device.map()
    device.expect_mapped(memory)
    return memory


class FilesDeviceRanges(LiveTest):
    def test_device_ranges(self) -> None:
        self.run_area(DEVICE_RANGES)
