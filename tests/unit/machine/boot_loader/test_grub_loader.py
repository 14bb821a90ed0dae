"""GRUB and /etc/default/grub: where the words go, and what else may stand there."""

import stat

import pytest
from tests.unit.machine.boot_loader.conftest import GetMachine

from hugepage_qa.errors import InputError
from hugepage_qa.machine.boot_loader.loader import ArgumentsLost

DROP_IN = "etc/default/grub.d/zz-hugepage-qa.cfg"
DEBIAN = ("debian", "grub-mkconfig", "update-grub")


def test_the_words_are_a_drop_in_of_their_own(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    before = made.files()
    loader = made.loader()
    assert loader.configuration == (made.root / DROP_IN,)
    loader.add(["hugepages=8", "thp_anon=64K:always;128K:never"])
    loader.add(["nosmt"])
    assert (made.root / DROP_IN).read_text() == (
        'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT} hugepages=8'
        ' \\"thp_anon=64K:always;128K:never\\" nosmt" # hugepage-qa\n'
    )
    loader.remove(["nosmt", "hugepages=8", "thp_anon=64K:always;128K:never"])
    assert made.files() == before


def test_without_drop_ins_they_are_the_last_line_of_the_defaults(machine: GetMachine) -> None:
    made = machine("suse", "grub2-mkconfig")
    defaults = made.root / "etc/default/grub"
    defaults.chmod(0o600)
    before = defaults.read_text()
    made.loader().add(["hugepages=8"])
    line = 'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT} hugepages=8" # hugepage-qa\n'
    assert defaults.read_text() == before + line
    made.loader().remove(["hugepages=8"])
    assert (defaults.read_text(), stat.S_IMODE(defaults.stat().st_mode)) == (before, 0o600)


def test_recovery_entries_do_not_get_the_words(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.loader().add(["hugepages=8"])
    lines = [line for line in (made.root / "boot/grub/grub.cfg").read_text().splitlines() if "\tlinux\t" in line]
    assert ["hugepages=8" in line for line in lines] == [True, True, False, True]


def test_a_drop_in_after_ours_that_replaces_the_words(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.write("etc/default/grub.d/zzz.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="quiet crashkernel=384M-:128M"\n')
    before = made.files()
    with pytest.raises(ArgumentsLost, match=r"^update-grub lost hugepages=8: the entry that boots next has 'root="):
        made.loader().add(["hugepages=8"])
    assert made.files() == before


def test_words_of_others_with_the_same_name_after_ours(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.write("etc/default/grub.d/zzz.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT hugepages=4"\n')
    made.run("update-grub")
    with pytest.raises(ArgumentsLost, match=r"did not put at the end, in order, hugepagesz=1G hugepages=1"):
        made.loader().add(["hugepagesz=1G", "hugepages=1"])


def test_changes_that_update_grub_has_not_seen_are_not_brought_in(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.write("etc/default/grub.d/pending.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX nosmt"\n')
    before = made.files()
    with pytest.raises(ArgumentsLost, match=r"^update-grub put in nosmt: the entry that boots next has 'root="):
        made.loader().add(["hugepages=8"])
    assert made.files() == before


def test_another_order_is_no_success(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.write("etc/default/grub.d/pending.cfg", 'GRUB_CMDLINE_LINUX="console=ttyS0,115200n8 console=tty0"\n')
    with pytest.raises(ArgumentsLost, match=r"^update-grub put in another order root=.* console=tty0 console=ttyS0"):
        made.loader().add(["hugepages=8"])


def test_words_of_the_administrator_are_not_ours_to_remove(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    before = made.files()
    with pytest.raises(InputError, match=r"^quiet: not added by us, remove it in .*/etc/default/grub or below it"):
        made.loader().remove(["quiet"])
    assert made.files() == before


def test_the_same_word_of_the_administrator_stays(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    before = made.loader().arguments()
    made.loader().add(["quiet"])
    assert made.loader().arguments() == (*before, "quiet")
    made.loader().remove(["quiet"])
    assert made.loader().arguments() == before


def test_words_that_a_killed_run_left_in_the_drop_in_alone(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    before = made.files()
    made.write(DROP_IN, 'GRUB_CMDLINE_LINUX_DEFAULT="${GRUB_CMDLINE_LINUX_DEFAULT} hugepages=8" # hugepage-qa\n')
    made.loader().remove(["hugepages=8"])
    assert made.files() == before


def test_entries_of_the_administrator_before_the_generated_ones(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    generated = made.loader().arguments()
    menu = made.root / "boot/grub/grub.cfg"
    begin = "### BEGIN /etc/grub.d/10_linux ###"
    own = "menuentry mine {\n linux /boot/vmlinuz root=/dev/a debug\n}\n"
    menu.write_text(menu.read_text().replace(begin, own + begin))
    assert made.loader().arguments() == generated
    made.loader().add(["hugepages=8"])
    assert made.loader().arguments() == (*generated, "hugepages=8")


def test_a_menu_without_linux(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    made.write("boot/grub/grub.cfg", "menuentry firmware { fwsetup }\n")
    with pytest.raises(InputError, match=r"grub\.cfg: expected an entry that boots Linux"):
        made.loader().arguments()


def test_a_menu_that_cannot_be_read(machine: GetMachine) -> None:
    made = machine(*DEBIAN)
    (made.root / "boot/grub/grub.cfg").unlink()
    with pytest.raises(InputError, match=r"no boot loader that is known"):
        made.loader()
