"""Path length: how many instructions a kernel takes for what it does with pages, on a machine whose clock counts them.

What is counted is what the processor executes, in the kernel above all, whatever the host does meanwhile. Caches, TLBs
and other processors do not show: a kernel that is as long on its way and misses its caches more often looks the same.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.process.actor_link import packet
from hugepage_qa.qemu.agent_channel import AgentChannel
from hugepage_qa.qemu.agent_machine import RunningMachine
from hugepage_qa.qemu.boards import find_board
from hugepage_qa.qemu.kernel_image import KernelImage
from hugepage_qa.qemu.virtual_machine import VirtualMachine
from hugepage_qa.sizes import GIB, KIB, MIB, format_size

SOURCE = Path(__file__).with_name("path_length.c")
UNIT = "instructions/page"

#: of node 0 one GiB has nothing that the kernel allocated as it booted; pages are migrated to the other node
NODES = (5 * GIB, GIB)
#: memory is cleared by those alone who owe it: a page that is cleared twice is seen. Where mappings lie is not random:
#: it decides whether each takes a page table of its own, a fifth of what mmap() and munmap() cost
WORDS = "init_on_alloc=0 norandmaps oops=panic"

#: seconds that the kernel gets to be done with what it does by itself: after a boot of Linux 6.12 or later tests of its
#: own ciphers share the processor with us. Where nothing runs they are over at once
_BOOTED, _AT_REST = 20, 1

_THP = "/sys/kernel/mm/transparent_hugepage"
_POOLS = "/sys/kernel/mm/hugepages"
_MEDIUM = 64 * KIB
_GIGANTIC = 256 * MIB
#: bytes of one round, and how many rounds there are; a round is longer than what a timer interrupt takes
_ROUND, _ROUNDS, _ROUNDS_OF_GIGANTIC = 8 * MIB, 25, 3
_BASE_PAGES = 512


@dataclass(frozen=True)
class Pages:
    """What an operation is done to: ``count`` pages of ``size`` bytes; ``kind`` is base, thp or hugetlb."""

    kind: str
    size: int
    count: int

    @property
    def name(self) -> str:
        """How metrics name them."""
        return f"{self.kind}-{format_size(self.size)}"

    @property
    def is_gigantic(self) -> bool:
        """Whether it takes seconds to clear one, emulated."""
        return self.size >= _GIGANTIC


@dataclass(frozen=True)
class Operation:
    """An operation of path_length.c on pages of ``kinds``; the pool of hugetlb pages has ``pool`` of them for each.

    ``starts_with`` is the kind of pages that it makes others of. Gigantic pages, and transparent ones that are smaller
    than the largest (medium), are left out where that says nothing, or takes minutes.
    """

    name: str
    kinds: tuple[str, ...]
    meaning: str
    pool: int = 1
    of_gigantic: bool = True
    of_medium: bool = True
    starts_with: str = ""


_ALL = ("base", "thp", "hugetlb")
OPERATIONS = (
    Operation("fault", _ALL, "touch for the first time"),
    Operation("unmap", _ALL, "munmap() of what was touched"),
    Operation("reserve", ("hugetlb",), "mmap() and munmap(), untouched"),
    Operation("fork", _ALL, "fork(), and the end of the child", of_gigantic=False),
    Operation("copy", _ALL, "write what a child has, too", pool=2, of_gigantic=False),
    Operation("move", _ALL, "mremap() to another place", of_gigantic=False),
    Operation("table", ("base",), "mremap() to the same place in another page table, which moves as a whole"),
    Operation("collapse", ("thp",), "MADV_COLLAPSE of base pages", of_medium=False, starts_with="base"),
    Operation("part", ("thp",), "MADV_DONTNEED of one base page in each"),
    Operation("split", ("thp",), "split_huge_pages of debugfs"),
    Operation("migrate", _ALL, "move_pages() to another node", pool=4, of_gigantic=False),
    Operation("grow", ("hugetlb",), "nr_hugepages raised", pool=0),
    Operation("shrink", ("hugetlb",), "nr_hugepages lowered", pool=0),
)


@dataclass(frozen=True)
class BootPaths:
    """What one boot has shown: metric -> instructions for a page, in each round; ``missing``: metric -> why none."""

    lengths: Mapping[str, Sequence[float]]
    missing: Mapping[str, str]


def counted_machine(kernel: KernelImage, seed: int, append: str = "") -> VirtualMachine:
    """Return the machine on which paths of ``kernel`` are counted; what is random in it is drawn from ``seed``."""
    board = find_board(kernel.architecture)
    nodes = NODES if board.max_nodes > 1 else (sum(NODES),)
    return VirtualMachine(kernel, board.default_cpu, nodes, f"{WORDS} {append}".strip(), instructions_seed=seed)


def count_paths(running: RunningMachine) -> BootPaths:
    """Return the lengths of all paths on a counted machine that ``SOURCE`` acts in. Raises MachineLost."""
    channel = running.channel
    _settle(channel)
    number = int(channel.ask("a", "/actor")[0])
    _ask(channel, number, f"rest {_BOOTED}")
    lengths: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for operation, pages in choose(list(pages_of(channel, running.base_page))):
        name = f"{operation.name}-{pages.name}"
        _ask(channel, number, f"rest {_AT_REST}")
        try:
            times = _ask(channel, number, request(operation, pages))
        except OSError as error:
            missing[name] = os.strerror(error.errno or errno.EIO)
        else:
            lengths[name] = [time / pages.count for time in times]
    return BootPaths(lengths, missing)


def _settle(channel: AgentChannel) -> None:
    """Keep khugepaged from work of its own, let THP be asked for, and show debugfs: as far as the kernel has these."""
    written = {
        f"{_THP}/khugepaged/scan_sleep_millisecs": "4000000000",
        f"{_THP}/enabled": "madvise",
        f"{_THP}/defrag": "madvise",
        f"{_THP}/hugepages-{_MEDIUM // KIB}kB/enabled": "madvise",
    }
    for path, text in written.items():
        with suppress(OSError):
            channel.ask("w", path, text.encode())
    with suppress(OSError):
        channel.ask("M", "none", "/sys/kernel/debug", "debugfs", "")


def pages_of(channel: AgentChannel, base: int) -> Iterator[Pages]:
    """Yield the kinds of pages that the machine has, whose base pages have ``base`` bytes."""
    yield Pages("base", base, _BASE_PAGES)
    with suppress(OSError):
        yield Pages("thp", size := int(channel.ask("r", f"{_THP}/hpage_pmd_size")[0]), _count(size))
    with suppress(OSError):
        channel.ask("r", f"{_THP}/hugepages-{_MEDIUM // KIB}kB/enabled")
        # fewer than make a larger one
        yield Pages("thp", _MEDIUM, MIB // _MEDIUM)
    with suppress(OSError):
        for name in sorted(channel.ask("n", _POOLS)):
            size = int(name.decode().removeprefix("hugepages-").removesuffix("kB")) * KIB
            yield Pages("hugetlb", size, _count(size))


def _count(size: int) -> int:
    return max(1, _ROUND // size)


def choose(pages: Sequence[Pages]) -> Iterator[tuple[Operation, Pages]]:
    """Yield what is counted on a machine with ``pages``."""
    for operation in OPERATIONS:
        for one in pages:
            if one.kind not in operation.kinds or (one.is_gigantic and not operation.of_gigantic):
                continue
            if one.size > _MEDIUM or one.kind != "thp" or operation.of_medium:
                yield operation, one


def request(operation: Operation, pages: Pages) -> str:
    """Return what path_length.c is asked."""
    pool = operation.pool * pages.count if pages.kind == "hugetlb" else 0
    is_long = pages.is_gigantic and operation.name != "reserve"
    rounds = _ROUNDS_OF_GIGANTIC if is_long else _ROUNDS
    kind = operation.starts_with or pages.kind
    return f"{operation.name} {kind} {pages.size} {pages.count} {pool} {rounds}"


def _ask(channel: AgentChannel, number: int, text: str) -> list[int]:
    """Return the numbers that path_length.c answers. Raises OSError where the kernel does not do it, MachineLost."""
    try:
        answer = channel.ask_actor("q", number, packet(text), waiting=lambda _told: None)[0].decode()
    except OSError as error:
        raise InputError(f"path_length.c ended at {text!r}") from error
    kind, *words = answer.split()
    if kind == "errno":
        raise OSError(int(words[0]), os.strerror(int(words[0])))
    if kind != "ok" or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise InputError(f"path_length.c answers {answer[:80]!r} to {text!r}")
    return [int(word) for word in words]
