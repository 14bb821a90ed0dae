"""One guest with a shell on its console: it boots, runs commands, and is busy in its memory."""

from functools import cache

from hugepage_qa.cases.guest.asked_guest import PATIENCE, AskedGuest
from hugepage_qa.cases.guest.guest_machine import AskedDriver
from hugepage_qa.cases.live import Live
from hugepage_qa.kernel.counters import parse_meminfo
from hugepage_qa.machine.host import CannotRun
from hugepage_qa.qemu.accelerator import TCG
from hugepage_qa.qemu.guest.console import load_drivers
from hugepage_qa.qemu.guest.driver import Driver, GuestError
from hugepage_qa.qemu.guest.guest_description import GuestDescription
from hugepage_qa.qemu.guest.guest_site import BUSY_PROGRAM, READY
from hugepage_qa.qemu.guest.numbered_lines import md5sum
from hugepage_qa.sizes import MIB

#: bytes that a file is written from
_PIECE = MIB


# of tens of MiB, and the same in several cases
@cache
def md5_of_written(line: str, length: int) -> str:
    """Return what md5sum(1) says of what a guest has in a file that it was told to write (``write_file``)."""
    text = f"{line}\n".encode()
    return md5sum((text * _PIECE)[:_PIECE] * (length // _PIECE))


class BootedGuest(AskedGuest):
    """A guest whose kernel runs; what its shell is asked raises GuestError where the guest cannot do it."""

    def __init__(self, live: Live, driver: AskedDriver, description: GuestDescription) -> None:
        super().__init__(live, driver, description)
        self._boots = 1

    def boot(self) -> None:
        """Start it, and wait until its shell asks for a command.

        An emulated guest goes on where one has booted before that sees the same: its pages are taken and written, and
        its kernel runs in them as if it had booted there.
        """
        seen = self.description.seen_inside
        if seen is None or self._driver.site.accelerator != TCG:
            self.boot_by_itself()
        else:
            self._boots = self._driver.ask(Driver.boot, self.name, seen, PATIENCE)
            self._mount_kernel_files()

    def boot_by_itself(self) -> None:
        """Start it, and wait until its kernel has booted and its shell asks for a command."""
        self._driver.ask(Driver.start, self.name, False)
        self._boots = 1
        self.await_shell()

    def reset(self) -> None:
        """Have it begin again in the same QEMU, as by its button, and wait until its shell asks for a command."""
        self._driver.ask(Driver.reset, self.name)
        self.await_next_shell()

    def reboot(self) -> None:
        """Have its kernel reboot, in the same QEMU, and wait until its shell asks for a command."""
        self.type("reboot -f", "reboot")
        self.await_next_shell()

    def power_off(self) -> None:
        """Have its kernel power it off, and wait until its QEMU has ended by itself, and given back its memory."""
        pid = self.pid
        self.type("poweroff -f", "poweroff")
        self.await_end(pid)

    def can_tell_of_panics(self) -> bool:
        """Load the driver of the device that is there for it, and tell whether its kernel has one."""
        self.run(load_drivers("pvpanic", "pvpanic-mmio", "pvpanic-pci"))
        # those of POWER and s390x tell their firmware without a driver
        if self._driver.site.architecture not in ("x86_64", "aarch64"):
            return True
        return "pvpanic" in self.run("find /sys/bus -name 'pvpanic*' -path '*/drivers/*'")

    def panic(self) -> None:
        """Have its kernel panic."""
        # it says "sysrq triggered crash", and where it is slow it does before it has printed the line that was typed
        self.type("echo c >/proc/sysrq-trigger", "sysrq.trigger")

    def await_next_shell(self) -> None:
        """Wait as ``await_shell`` does, but for that of a boot which has just begun in the same QEMU."""
        self._boots += 1
        self.await_shell()

    def await_shell(self) -> None:
        """Wait until the shell asks for its first command, and give it the kernel's files."""
        earlier = f"{READY}(?s:.*?)" * (self._boots - 1)
        self._driver.ask(Driver.await_output, self.name, f"{earlier}{READY}", PATIENCE)
        self._mount_kernel_files()

    def _mount_kernel_files(self) -> None:
        self.run("/bin/busybox mount -a")

    def run(self, command: str, seconds: float = PATIENCE) -> str:
        """Run a command in the guest's shell and return what it printed. Raises GuestError when it fails."""
        # what is typed is printed, too: the words that end the output must not be in it as they are
        said = self._driver.ask(Driver.type, self.name, f"{command}; echo @end''ed $?", r"@ended (\d+)\n", seconds)
        output, _, code = said.rstrip("\n").rpartition("@ended ")
        if code != "0":
            raise GuestError(f"{command} ends with {code} in the guest: {output[-200:]}")
        return output.partition("\n")[2]

    def write_file(self, path: str, line: str, length: int) -> None:
        """Have it write a file of ``length`` bytes, which are as many pieces of lines as go into it (``_PIECE``).

        Each of its lines alone would be a system call, and 64 MiB take half a minute in an emulated guest.
        """
        piece = f"{path}.piece"
        self.run(f"yes {line} | head -c {_PIECE} >{piece}")
        self.run(f"for _ in $(seq {length // _PIECE}); do cat {piece}; done >{path}; rm {piece}")

    def keep_busy(self, memory: int | None = None) -> None:
        """Have a program in it write and check ``memory`` bytes from now on, for None those that it takes by itself.

        These are two thirds of what is free, at most 128 MiB (process/programs/busy_memory.c). Returns when all of them
        have been written. Raises CannotRun where no such program can be built.
        """
        if self._driver.site.never_busy:
            raise CannotRun(f"nothing keeps a guest busy: {self._driver.site.never_busy}")
        self.run(f"/bin/{BUSY_PROGRAM} start {memory or ''}".rstrip())

    def find_in_memory(self) -> str:
        """Return what that program has found: "right", or what was wrong (process/programs/busy_memory.c)."""
        return self.run(f"/bin/{BUSY_PROGRAM} await 2").strip()

    def has_virtio_driver(self, name: str, *needed: str) -> bool:
        """Load the driver ``name``, and those ``needed`` before it, and tell whether the guest's kernel has it.

        They are loaded where the image has them as modules.
        """
        # /sys/bus/virtio is not there without the bus
        return name in self.run(f"{load_drivers(*needed, name)}; ls /sys/bus/virtio/drivers || true").split()

    def type(self, line: str, pattern: str) -> str:
        """Type a line in the guest's shell and return what it prints up to ``pattern``."""
        return self._driver.ask(Driver.type, self.name, line, pattern, PATIENCE)

    def restore(self, path: str) -> None:
        """Start it with the memory in the file ``path``."""
        self._driver.ask(Driver.restore, self.name, path)
        # it goes on behind its prompt, and a log of its own begins with it
        self._boots = 0

    @property
    def base_page(self) -> int:
        """The size of its kernel's base page."""
        smaps = self.run("grep -m 1 KernelPageSize /proc/self/smaps")
        return parse_meminfo(smaps, "/proc/self/smaps of the guest")["KernelPageSize"]

    @property
    def memory(self) -> int:
        """Bytes that its kernel has to give."""
        return parse_meminfo(self.run("grep MemTotal /proc/meminfo"), "/proc/meminfo of the guest")["MemTotal"]
