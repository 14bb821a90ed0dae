"""What holds for every boot loader: exact words, in order, put back to the byte, and no change that is not noticed."""

from dataclasses import dataclass

import pytest
from tests.unit.machine.boot_loader.conftest import FakeMachine, GetMachine

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost

PAIRS = ("hugepagesz=1G", "hugepages=1", "hugepagesz=2M", "hugepages=64")


@dataclass(frozen=True)
class Kind:
    """A machine, its tools, the tool that does the work, its name in messages, and the kernel arguments it has."""

    machine: str
    tools: tuple[str, ...]
    name: str
    worker: str
    arguments: str
    #: words that the tool puts after all others
    last: str = ""

    def __str__(self) -> str:
        return f"{self.machine}-{self.worker}"


OSTREE = "mitigations=auto,nosmt ignition.platform.id=qemu console=tty0 console=ttyS0,115200n8"
OSTREE += " root=UUID=bd3d6a4c-6c9a-4a53-9b06-7a2a9d9b7b51 rw rootflags=prjquota hugepagesz=1G hugepages=2"
KINDS = (
    Kind(
        "fedora",
        ("grubby", "grub2-mkconfig"),
        "grubby",
        "grubby",
        "root=UUID=0b1c7e4a-61c8-4b0e-9c4e-3d8d1f7f2a55 ro rootflags=subvol=root rhgb quiet",
    ),
    Kind(
        "rhel8",
        ("grubby",),
        "grubby",
        "grubby",
        "root=/dev/mapper/rhel-root ro crashkernel=auto resume=/dev/mapper/rhel-swap"
        " rd.lvm.lv=rhel/root rd.lvm.lv=rhel/swap rhgb quiet skew_tick=1",
    ),
    Kind(
        "debian",
        ("grub-mkconfig", "update-grub"),
        "update-grub",
        "grub-mkconfig",
        "root=UUID=6b3a52e9-9b1c-4e0c-8a55-9d6f4d2c7e10 ro console=tty0 console=ttyS0,115200n8 quiet"
        " crashkernel=384M-:128M",
    ),
    Kind(
        "ubuntu",
        ("grub-mkconfig", "update-grub"),
        "update-grub",
        "grub-mkconfig",
        "root=UUID=4c0c9a1e-2b0d-4f4f-9d52-7f6f6a1b9c33 ro splash console=tty1 console=ttyS0",
    ),
    Kind(
        "suse",
        ("grub2-mkconfig",),
        "grub2-mkconfig",
        "grub-mkconfig",
        "root=UUID=8e2f7b1d-5a6e-4a0b-9f3d-1c2b3a4d5e6f splash=silent resume=/dev/sda3 mitigations=auto quiet"
        " security=apparmor",
    ),
    Kind(
        "rhel-s390x",
        ("zipl", "grubby"),
        "grubby and zipl",
        "grubby",
        "root=/dev/mapper/rhel-root crashkernel=1G-4G:196M,4G-64G:256M,64G-:512M rd.dasd=0.0.0120 rd.dasd=0.0.0121"
        " rd.lvm.lv=rhel/root cio_ignore=all,!condev rd.znet=qeth,0.0.0600,0.0.0601,0.0.0602,layer2=1,portno=0",
    ),
    Kind(
        "rhel-s390x",
        ("zipl",),
        "zipl",
        "zipl",
        "root=/dev/mapper/rhel-root crashkernel=1G-4G:196M,4G-64G:256M,64G-:512M rd.dasd=0.0.0120 rd.dasd=0.0.0121"
        " rd.lvm.lv=rhel/root cio_ignore=all,!condev rd.znet=qeth,0.0.0600,0.0.0601,0.0.0602,layer2=1,portno=0",
    ),
    Kind("ubuntu-s390x", ("zipl",), "zipl", "zipl", "root=/dev/mapper/vg-root crashkernel=196M BOOT_IMAGE=0"),
    Kind("debian-s390x", ("zipl",), "zipl", "zipl", "root=/dev/disk/by-path/ccw-0.0.0200-part1 vmpoff=LOGOFF quiet"),
    Kind(
        "arch",
        ("bootctl", "kernel-install"),
        "kernel-install",
        "kernel-install",
        "root=PARTUUID=2f2a1c55-0d5e-4a76-b0a8-2c3f5e7d9b10 rw quiet",
        last="systemd.machine_id=b0a1c2d3e4f5061728394a5b6c7d8e9f",
    ),
    Kind("coreos", ("rpm-ostree", "ostree"), "rpm-ostree", "rpm-ostree", OSTREE),
    Kind("coreos", ("ostree",), "ostree", "ostree", OSTREE),
)
#: those that may have two equal words; grubby replaces words of the same name
APPENDING = tuple(kind for kind in KINDS if kind.worker != "grubby")
#: those that write the words with a tool that can lose one; zipl without grubby gets the words from us
LOSING = tuple(kind for kind in KINDS if kind.worker != "zipl")


def each(kinds: tuple[Kind, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=str)


def make(machine: GetMachine, kind: Kind) -> FakeMachine:
    made = machine(kind.machine, *kind.tools)
    if "zipl" in kind.tools:
        made.run("zipl")
    return made


def words(kind: Kind, *added: str) -> tuple[str, ...]:
    return (*kind.arguments.split(), *added, *kind.last.split())


@each(KINDS)
def test_found_and_read(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    assert loader.name == kind.name
    assert loader.arguments() == words(kind)


@each(KINDS)
def test_pairs_are_added_in_order_and_removed(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    before = loader.arguments()
    added = ("default_hugepagesz=2M", "transparent_hugepage=never")
    loader.add(added)
    assert loader.arguments() == words(kind, *added)
    loader.remove(added)
    assert loader.arguments() == before


@each(APPENDING)
def test_repeated_words_are_legal_and_the_last_ones_go(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    before = loader.arguments()
    loader.add(PAIRS)
    loader.add(PAIRS[:2])
    assert loader.arguments() == words(kind, *PAIRS, *PAIRS[:2])
    loader.remove(PAIRS[:2])
    assert loader.arguments() == words(kind, *PAIRS)
    loader.remove(PAIRS)
    assert loader.arguments() == before


@each(tuple(kind for kind in KINDS if "hugepages=" not in kind.arguments))
def test_repeated_words_of_one_call(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    loader.add(PAIRS)
    assert loader.arguments() == words(kind, *PAIRS)
    loader.remove(PAIRS)
    assert loader.arguments() == words(kind)


@each(KINDS)
def test_values_that_mean_something_to_a_boot_loader(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    before = loader.arguments()
    added: tuple[str, ...] = (
        "thp_anon=16K-64K:always;128K,512K:inherit",
        "dyndbg=file mm/*.c +p",
        "x={a|b}",
        "node=0:1,1:2",
    )
    if kind.worker == "grubby":
        added = added[:1] + added[3:]  # it has no way to quote a space
    loader.add(added)
    assert loader.arguments() == words(kind, *added)
    loader.remove(added)
    assert loader.arguments() == before


@each(KINDS)
def test_files_are_as_before(machine: GetMachine, kind: Kind) -> None:
    made = make(machine, kind)
    # after the first change a tool may have spelt variables out
    made.loader().add(["first=1"])
    before = made.files()
    made.loader().add(["transparent_hugepage=never"])
    made.loader().remove(["transparent_hugepage=never"])
    after = made.files()
    assert {name: text.split() for name, text in after.items()} == {name: text.split() for name, text in before.items()}


@each(LOSING)
def test_a_lost_argument_names_the_tool_and_is_undone(machine: GetMachine, kind: Kind) -> None:
    made = make(machine, kind)
    before = made.files()
    arguments = made.loader().arguments()
    made.lose("default_hugepagesz=2M")
    with pytest.raises(ArgumentsLost) as caught:
        made.loader().add(["transparent_hugepage=never", "default_hugepagesz=2M"])
    assert str(caught.value).startswith(f"{kind.name} lost default_hugepagesz=2M: the entry that boots next has ")
    assert (caught.value.tool, caught.value.arguments) == (kind.name, ("default_hugepagesz=2M",))
    assert "transparent_hugepage=never" in caught.value.found
    assert made.loader().arguments() == arguments
    if kind.machine != "coreos":  # there a further deployment has the arguments of before
        assert made.files() == before


@each(KINDS)
def test_a_failing_tool_is_one_line_and_changes_nothing(machine: GetMachine, kind: Kind) -> None:
    made = make(machine, kind)
    before = made.files()
    made.fail(kind.worker)
    with pytest.raises(InputError, match=r"ended with exit code 1: ") as caught:
        made.loader().add(["transparent_hugepage=never"])
    assert "\n" not in str(caught.value)
    assert made.files() == before


@each(KINDS)
def test_words_that_are_not_there_are_removed_already(machine: GetMachine, kind: Kind) -> None:
    loader = make(machine, kind).loader()
    before = loader.arguments()
    loader.remove(["transparent_hugepage=never"])
    assert loader.arguments() == before


@each(KINDS)
@pytest.mark.parametrize("word", ['a="b"', "a'b", "a\\b", "a$b", "a`b`", "a\nb", "", "--", "ä"])
def test_words_that_cannot_be_quoted_are_refused(machine: GetMachine, kind: Kind, word: str) -> None:
    made = make(machine, kind)
    before = made.files()
    with pytest.raises(InputError, match=r"^kernel argument .*: expected printable ASCII"):
        made.loader().add(["hugepages=1", word])
    assert made.files() == before


@each(KINDS)
def test_nothing_to_do_runs_nothing(machine: GetMachine, kind: Kind) -> None:
    made = make(machine, kind)
    made.fail(kind.worker)
    made.loader().add([])
    made.loader().remove([])
