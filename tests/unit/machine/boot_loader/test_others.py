"""Detection, systemd-boot and image based systems: what is special about each."""

import errno
from pathlib import Path

import pytest
from tests.unit.machine.boot_loader.conftest import GetMachine

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost, append_words, drop_words, join_words, run_tool

GRUB = ("grubby", "grub-mkconfig", "grub2-mkconfig", "update-grub")
ALL = (*GRUB, "zipl", "bootctl", "kernel-install", "rpm-ostree", "ostree")


@pytest.mark.parametrize(
    ("name", "loader"),
    [
        ("fedora", "grubby"),
        ("debian", "update-grub"),
        ("suse", "update-grub"),
        ("rhel-s390x", "grubby and zipl"),
        ("ubuntu-s390x", "zipl"),
        ("arch", "kernel-install"),
        ("coreos", "rpm-ostree"),
    ],
)
def test_the_traces_of_a_loader_count_and_not_the_tools(machine: GetMachine, name: str, loader: str) -> None:
    assert machine(name, *ALL).loader().name == loader


@pytest.mark.parametrize("name", ["debian", "rhel-s390x", "ubuntu-s390x", "arch", "coreos"])
def test_a_loader_without_its_tools_is_not_known(machine: GetMachine, name: str) -> None:
    with pytest.raises(InputError, match=r"no boot loader that is known: looked for /run/ostree-booted .* grubby"):
        machine(name).loader()


def test_entries_without_grubby(machine: GetMachine) -> None:
    with pytest.raises(InputError, match=r"expected grubby to change them, install it"):
        machine("fedora", "grub2-mkconfig").loader()


def test_files_that_only_root_can_look_for(machine: GetMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = machine("fedora", "grubby")

    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(InputError, match=r": cannot be read \(Permission denied\): expected to be root"):
        made.loader()


def test_another_loader_has_booted_the_machine(machine: GetMachine) -> None:
    made = machine("arch", "bootctl", "kernel-install")
    path = made.root / "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
    path.write_bytes(b"\x06\0\0\0" + "GRUB 2.12\0".encode("utf-16-le"))
    with pytest.raises(InputError, match=r"no boot loader that is known"):
        made.loader()


def test_unified_kernel_image(machine: GetMachine) -> None:
    made = machine("arch", "bootctl", "kernel-install")
    (entry,) = (made.root / "boot/loader/entries").iterdir()
    image = made.root / "boot/EFI/Linux/arch-6.14.6-arch1-1.efi"
    image.parent.mkdir(parents=True)
    entry.rename(image)
    before = made.loader().arguments()
    made.loader().add(["hugepages=8"])
    assert "hugepages=8" in made.loader().arguments()
    made.loader().remove(["hugepages=8"])
    made.lose("hugepages=8")
    with pytest.raises(ArgumentsLost, match=r"^kernel-install lost hugepages=8"):
        made.loader().add(["hugepages=8"])
    assert made.loader().arguments() == before


def test_without_a_command_line_the_entry_counts(machine: GetMachine) -> None:
    made = machine("arch", "bootctl", "kernel-install")
    (made.root / "etc/kernel/cmdline").unlink()
    before = made.loader().arguments()
    assert made.loader().configuration == (made.root / "etc/kernel/cmdline",)
    made.loader().add(["hugepages=8"])
    assert made.loader().arguments() == (*before, "hugepages=8")
    made.loader().remove(["hugepages=8"])
    assert made.loader().arguments() == before


def test_kernel_without_its_image(machine: GetMachine) -> None:
    made = machine("arch", "bootctl", "kernel-install")
    (made.root / "usr/lib/modules/6.14.6-arch1-1/vmlinuz").unlink()
    before = made.files()
    with pytest.raises(InputError, match=r"^kernel 6\.14\.6-arch1-1 .*: expected its image at .*/vmlinuz or "):
        made.loader().add(["hugepages=8"])
    assert made.files() == before


def test_no_entry_at_all(machine: GetMachine) -> None:
    made = machine("arch", "bootctl", "kernel-install")
    (entry,) = (made.root / "boot/loader/entries").iterdir()
    entry.unlink()
    with pytest.raises(InputError, match=r"^bootctl list: names no default entry"):
        made.loader().arguments()


def test_staged_deployment_is_read_from_the_tool(machine: GetMachine) -> None:
    made = machine("coreos", "rpm-ostree")
    before = (made.root / "boot/loader/entries/ostree-2.conf").read_text()
    made.loader().add(["nosmt"])
    assert (made.root / "boot/loader/entries/ostree-2.conf").read_text() == before
    assert made.loader().arguments()[-1] == "nosmt"


def test_staged_deployment_cannot_be_changed_without_rpm_ostree(machine: GetMachine) -> None:
    made = machine("coreos", "ostree")
    made.write("run/ostree/staged-deployment", "")
    with pytest.raises(InputError, match=r"a deployment is staged: reboot first"):
        made.loader().add(["nosmt"])


def test_no_deployment(machine: GetMachine) -> None:
    made = machine("coreos", "ostree")
    for entry in (made.root / "boot/loader.1/entries").iterdir():
        entry.unlink()
    with pytest.raises(InputError, match=r"expected entries of ostree"):
        made.loader().arguments()


def test_tools_that_cannot_be_run() -> None:
    with pytest.raises(InputError, match=r"^/no/such/tool: cannot be run \(No such file or directory\)"):
        run_tool(["/no/such/tool"])


@pytest.mark.parametrize("text", ["", "a b=1", 'a "b c" d="e f"', "a b=1 -- init"])
def test_words_added_to_a_text_come_off_again(text: str) -> None:
    added = append_words(text, ["b=1", "x y"])
    assert added.endswith('b=1 "x y"')
    assert drop_words(added, ["x y", "b=1"]) == text


def test_text_of_others_is_not_touched() -> None:
    assert drop_words('a="b c"  b d="e" b', ["b", "a=b c"]) == 'b d="e"'
    assert join_words(["a=1", "b c", "d;e"]) == 'a=1 "b c" "d;e"'
