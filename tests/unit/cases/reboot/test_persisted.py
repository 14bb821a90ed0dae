"""sysctl.d as systemd-sysctl reads it."""

from pathlib import Path

import pytest

from hugepage_qa.cases.reboot.run_time_settings import own_text, read_persisted


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_nothing_is_set(tmp_path: Path) -> None:
    write(tmp_path, "etc/sysctl.d/10.conf", "vm.swappiness = 10\n# vm.nr_hugepages = 5\nvm.nr_hugepages_mempolicy=4\n")
    assert read_persisted(tmp_path) is None


@pytest.mark.parametrize("line", ["vm.nr_hugepages=8", " vm/nr_hugepages = 8 ", "-vm.nr_hugepages = 8", own_text(8)])
def test_forms(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, "etc/sysctl.d/10.conf", line)
    found = read_persisted(tmp_path)
    assert found is not None and (found.pages, found.path) == (8, path)


def test_the_name_of_the_file_decides_and_not_its_directory(tmp_path: Path) -> None:
    write(tmp_path, "etc/sysctl.d/10.conf", "vm.nr_hugepages = 1\n")
    last = write(tmp_path, "usr/lib/sysctl.d/50.conf", "vm.nr_hugepages = 2\nvm.nr_hugepages = 3\n")
    write(tmp_path, "run/sysctl.d/20.conf", "vm.nr_hugepages = 4\n")
    found = read_persisted(tmp_path)
    assert found is not None and (found.pages, found.path) == (3, last)


def test_a_file_in_etc_masks_one_of_the_same_name(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/sysctl.d/50.conf", "vm.nr_hugepages = 2\n")
    write(tmp_path, "etc/sysctl.d/50.conf", "")
    assert read_persisted(tmp_path) is None


def test_a_link_to_nothing_switches_a_file_off(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/sysctl.d/50.conf", "vm.nr_hugepages = 2\n")
    (tmp_path / "etc/sysctl.d").mkdir(parents=True)
    (tmp_path / "etc/sysctl.d/50.conf").symlink_to("/dev/null")
    assert read_persisted(tmp_path) is None


def test_other_names_are_no_configuration(tmp_path: Path) -> None:
    write(tmp_path, "etc/sysctl.d/README", "vm.nr_hugepages = 2\n")
    write(tmp_path, "etc/sysctl.conf", "vm.nr_hugepages = 2\n")
    assert read_persisted(tmp_path) is None
