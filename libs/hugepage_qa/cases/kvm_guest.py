"""A virtual machine of KVM that an actor has made, with one processor, to see which pages KVM maps for it.

It needs no emulator: the guest is some ten instructions, which write or look at memory, step by step. They run without
paging, so that what the processor walks are KVM's own tables alone.
"""

import errno
import mmap
import os
from collections import Counter
from collections.abc import Mapping

from hugepage_qa.cases.live import READ_WRITE, Live
from hugepage_qa.cases.mapped_memory import WORD, Memory
from hugepage_qa.errors import InputError
from hugepage_qa.kernel import kvm
from hugepage_qa.kernel.kvm import (
    PAGES,
    SPLITS,
    KvmRequest,
    ebp_in,
    in_protected_mode,
    read_kvm_directory,
    read_kvm_statistics,
    registers,
)
from hugepage_qa.kernel.uapi import SIG_BLOCK
from hugepage_qa.machine.host import CannotRun, ObservedTree
from hugepage_qa.oracle.kvm_mapping import GivenMemory
from hugepage_qa.process.actor import Actor, Refused, set_alarm
from hugepage_qa.sizes import GIB, KIB, MIB

#: where the guest has the memory that is looked at: pages of 1G begin there, and devices are beyond what fits
START = GIB
PARAMETERS = "sys/module/kvm/parameters"
#: switches of the processor's own tables for guests, by the module
_NESTED_TABLES = ("sys/module/kvm_amd/parameters/npt", "sys/module/kvm_intel/parameters/ept")

_CODE_SLOT, _FIRST_SLOT = 0, 1
_CODE_AT, _WRITE_AT, _LOOK_AT, _HALT_AT = 0x1000, 0x1000, 0x1040, 0x1080
_PROGRAM = {
    # 1: mov [esi], esi; mov dword [esi+4], 0; add esi, edi; cmp esi, edx; jb 1; hlt
    _WRITE_AT: "8936 c7460400000000 01fe 39d6 72f1 f4",
    # 1: cmp [esi], esi; je 2; inc ebp; 2: add esi, edi; cmp esi, edx; jb 1; hlt
    _LOOK_AT: "3936 7401 45 01fe 39d6 72f5 f4",
    _HALT_AT: "f4",
}
#: hlt, and nothing else
HALT = 0xF4

_SIGALRM, _SIGNALS = 14, 8
_SECONDS = 120


class KvmGuest:
    """The guest; ``actor`` has made it and has its memory, and with it the guest ends."""

    def __init__(self, live: Live) -> None:
        """Raises CannotRun where KVM runs no guest, or does not tell which pages it maps."""
        if live.host.architecture != "x86_64":
            raise CannotRun(f"KVM of {live.host.architecture} does not tell which page sizes it maps")
        self._live = live
        self.actor = live.actor()
        live.host.load_kvm()
        _need_nested_tables(live)
        device = _open_kvm(live, self.actor)
        try:
            self._machine = self._ioctl(device, kvm.CREATE_VM)
            self._ioctl(self._machine, kvm.SET_TSS, kvm.TSS)
            self._put_code()
            self._processor = self._ioctl(self._machine, kvm.CREATE_VCPU)
        except Refused as refusal:
            raise CannotRun(f"/dev/kvm makes no virtual machine: {refusal.strerror}") from refusal
        length = self._ioctl(device, kvm.RUN_SIZE)
        self._run = self.actor.mmap(length, READ_WRITE, mmap.MAP_SHARED, self._processor)
        self._protect()
        self._end_after_seconds()
        self._prove()
        self._directory = self._find_directory()
        #: what is mapped for the code, and by some processors besides
        self._before = self._read()

    # --- memory ---

    def give(self, memory: Memory, *, at: int = START, offset: int = 0, length: int | None = None) -> GivenMemory:
        """Let the guest have ``length`` bytes of ``memory`` from ``offset`` on, at the address ``at``."""
        length = memory.length - offset if length is None else length
        given = GivenMemory(at, memory.address + offset, length, memory.size)
        self._set_memory(_FIRST_SLOT, 0, given)
        return given

    def log_dirty(self, given: GivenMemory, *, on: bool = True) -> None:
        """Have KVM log which pages the guest writes, or no longer."""
        self._set_memory(_FIRST_SLOT, kvm.LOG_DIRTY if on else 0, given)

    def take(self, given: GivenMemory) -> None:
        """Take memory from the guest."""
        self._set_memory(_FIRST_SLOT, 0, GivenMemory(given.guest, given.host, 0, given.page))

    def dirty_pages(self, given: GivenMemory) -> set[int]:
        """Return the numbers of the base pages that the guest has written since it was asked last."""
        bits = given.length // self._live.base_page
        size = -(-bits // (8 * WORD)) * WORD
        bitmap = self.actor.mmap(size, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._ioctl(self._machine, kvm.GET_DIRTY_LOG, self._pack("2IQ", _FIRST_SLOT, 0, bitmap))
        found = int.from_bytes(self._memory_at(bitmap, size), self._live.host.byte_order)
        self.actor.call("munmap", bitmap, size)
        return {number for number in range(bits) if found >> number & 1}

    # --- running ---

    def write(self, given: GivenMemory, first: int = 0, length: int | None = None, step: int | None = None) -> None:
        """Have the guest store its own address in a word at each multiple of ``step``, by default a base page."""
        self._go(_WRITE_AT, given, first, length, step)

    def wrong(self, given: GivenMemory, first: int = 0, length: int | None = None, step: int | None = None) -> int:
        """Have the guest look at these words; return how many are not its own address."""
        self._go(_LOOK_AT, given, first, length, step)
        return ebp_in(self.actor.uapi, self._answer(kvm.GET_REGISTERS))

    def execute(self, address: int) -> None:
        """Have the guest execute what is at ``address``, which ends with HALT."""
        self._expect_halted(self._enter(address, 0, 0, 0))

    def expect_written(self, given: GivenMemory, memory: Memory) -> None:
        """Expect the process to find what the guest has written to each base page, and the guest itself."""
        wrong = memory.actor.check(given.host, given.length, self._live.base_page, given.guest)
        self._live.expect("words of the guest that its process does not find", 0, wrong)
        self._live.expect("words of the guest that it does not find", 0, self.wrong(given))

    # --- what KVM maps ---

    def expect_mapped(self, pages: Mapping[int, int]) -> None:
        """Expect KVM to map so many pages of each size for the memory of the guest, soon."""
        # the kernel may have moved the page with its code, which is counted when it is executed again
        self.execute(_HALT_AT)
        self._live.host.wait_until(lambda: self.mapped == Counter(pages), seconds=5)
        found = self.mapped
        for name, size in PAGES.items():
            self._live.expect(name, pages.get(size, 0), found.get(size, 0))

    @property
    def mapped(self) -> Counter[int]:
        """The size of a page -> how many KVM maps for the memory of the guest."""
        found = self._read()
        return +Counter({size: found[name] - self._before[name] for name, size in PAGES.items()})

    @property
    def splits(self) -> int:
        """How many tables are there because huge pages must not be executable."""
        return self._read()[SPLITS] - self._before[SPLITS]

    @property
    def debugfs_directory(self) -> str | None:
        """Where debugfs has its statistics; None where nobody can read them."""
        return self._directory

    def statistics(self) -> Mapping[str, int]:
        """Return the statistics in KVM's own file. Raises CannotRun before Linux 5.14."""
        try:
            descriptor = self._ioctl(self._machine, kvm.GET_STATISTICS)
        except Refused as refusal:
            raise CannotRun("this kernel has no KVM_GET_STATS_FD (Linux 5.14)") from refusal

        def read_at(length: int, offset: int) -> bytes:
            count, (content,) = self.actor.call_with_buffers("pread64", descriptor, bytes(length), length, offset)
            return content[:count]

        found = read_kvm_statistics(read_at, self.actor.uapi)
        self.actor.call("close", descriptor)
        return found

    def _read(self) -> Mapping[str, int]:
        # the page with the code is ordinary memory, which may be moved meanwhile: when this is executed it is mapped
        self._expect_halted(self._enter(_HALT_AT, 0, 0, 0))
        if self._directory is not None:
            found = read_kvm_directory(ObservedTree(self._live.host), self._directory)
            if found is None:
                raise InputError(f"/{self._directory}: the statistics of a guest that lives are gone")
            return found
        found = self.statistics()
        if not {*PAGES, SPLITS} <= found.keys():
            raise CannotRun("KVM of this kernel does not tell which page sizes it maps (Linux 5.15)")
        return found

    def _find_directory(self) -> str | None:
        try:
            directory = f"{self._live.mount_interface('debugfs')}/kvm/{self.actor.pid}-{self._machine}"
        except CannotRun:
            return None
        return directory if read_kvm_directory(self._live.host, directory) else None

    # --- KVM ---

    def _put_code(self) -> None:
        length = self._live.base_page
        code = self.actor.mmap(length, READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at, instructions in _PROGRAM.items():
            content = bytes.fromhex(instructions)
            content += bytes(-len(content) % WORD)
            for offset in range(0, len(content), WORD):
                word = self._unpack("Q", content[offset : offset + WORD])[0]
                self.actor.write(code + at - _CODE_AT + offset, word)
        self._set_memory(_CODE_SLOT, 0, GivenMemory(_CODE_AT, code, length, length))

    def _set_memory(self, slot: int, flags: int, given: GivenMemory) -> None:
        region = self._pack("2I3Q", slot, flags, given.guest, given.length, given.host)
        self._ioctl(self._machine, kvm.SET_MEMORY, region)

    def _protect(self) -> None:
        special = self._answer(kvm.GET_SPECIAL)
        self._ioctl(self._processor, kvm.SET_SPECIAL, in_protected_mode(self.actor.uapi, special))

    def _end_after_seconds(self) -> None:
        """Have SIGALRM end KVM_RUN, and nothing else: only there it is not blocked."""
        alarm = 1 << (_SIGALRM - 1)
        self.actor.call("rt_sigprocmask", SIG_BLOCK, self._pack("Q", alarm), 0, _SIGNALS)
        self._ioctl(self._processor, kvm.SET_SIGNALS, self._pack("IQ", _SIGNALS, 0))

    def _prove(self) -> None:
        """Raise CannotRun where the guest does not run."""
        try:
            reason = self._enter(_HALT_AT, 0, 0, 0)
        except Refused as refusal:
            why = refusal.strerror
            raise CannotRun(f"/dev/kvm does not run a guest of one instruction: KVM_RUN: {why}") from refusal
        if reason in kvm.NOT_ENTERED:
            raise CannotRun(f"/dev/kvm does not run a guest of one instruction: exit reason {reason}")
        self._expect_halted(reason)

    def _go(self, code: int, given: GivenMemory, first: int, length: int | None, step: int | None) -> None:
        start = given.guest + first
        end = given.guest + given.length if length is None else start + length
        self._expect_halted(self._enter(code, start, end, step or self._live.base_page))

    def _enter(self, code: int, start: int, end: int, step: int) -> int:
        """Run the guest from ``code`` on and return the reason of its exit. Raises Refused."""
        wanted = registers(self.actor.uapi, edx=end, esi=start, edi=step, eip=code)
        self._ioctl(self._processor, kvm.SET_REGISTERS, wanted)
        set_alarm(self.actor, _SECONDS)
        try:
            self._ioctl(self._processor, kvm.RUN)
        except Refused as refusal:
            if refusal.errno == errno.EINTR:
                raise InputError(f"a guest of a few instructions does not end within {_SECONDS} s") from refusal
            raise
        finally:
            set_alarm(self.actor, 0)
        return self.actor.read(self._run + kvm.EXIT_REASON_AT) % (1 << 32)

    def _expect_halted(self, reason: int) -> None:
        if reason != kvm.EXIT_HLT:
            self._live.fail("how the guest ended (KVM_EXIT_*)", kvm.EXIT_HLT, reason)

    def _memory_at(self, address: int, length: int) -> bytes:
        """Return what the actor has at ``address``: a file takes it at once, and hands it out in pieces."""
        file = self.actor.call("memfd_create", "bitmap", 0)
        self.actor.call("write", file, address, length)
        content = b""
        while len(content) < length:
            size = min(length - len(content), 16 * KIB)
            content += self.actor.call_with_buffers("pread64", file, bytes(size), size, len(content))[1][0]
        self.actor.call("close", file)
        return content

    def _ioctl(self, descriptor: int, request: KvmRequest, argument: bytes | int = 0) -> int:
        return self.actor.call("ioctl", descriptor, request.number, argument)

    def _answer(self, request: KvmRequest) -> bytes:
        """Return what the processor tells."""
        place = bytes(request.size)
        return self.actor.call_with_buffers("ioctl", self._processor, request.number, place)[1][0]

    def _pack(self, layout: str, *values: int) -> bytes:
        return self.actor.uapi.pack(layout, *values)

    def _unpack(self, layout: str, data: bytes) -> tuple[int, ...]:
        return self.actor.uapi.unpack(layout, data)


def largest_page(live: Live) -> int:
    """Return the bytes of the largest page that KVM can map for a guest."""
    # AMD's tables for guests have the form of the host's; Intel's have a flag of their own
    of_intel = [line for line in (live.host.read("proc/cpuinfo") or "").splitlines() if line.startswith("vmx flags")]
    return 2 * MIB if of_intel and "ept_1gb" not in of_intel[0].split() else GIB


def _open_kvm(live: Live, actor: Actor) -> int:
    try:
        return live.open(actor, "/dev/kvm", os.O_RDWR)
    except Refused as refusal:
        raise CannotRun(f"/dev/kvm cannot be opened: {refusal.strerror}") from refusal


def _need_nested_tables(live: Live) -> None:
    """Raise CannotRun where KVM shadows the guest's own tables: it maps no page of 1G then."""
    switches = [(live.host.read(path) or "").strip() for path in _NESTED_TABLES]
    if not {"Y", "1"}.intersection(switches):
        raise CannotRun("no KVM with nested page tables is loaded (kvm_amd.npt, kvm_intel.ept)")
