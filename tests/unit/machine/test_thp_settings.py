"""Files that set a switch to the value that it has are named; comments, other switches and other values are not."""

from pathlib import Path

import pytest

from hugepage_qa.cases.reboot.reboot_machine import find_settings

from .conftest import write

PATH = "/sys/kernel/mm/transparent_hugepage"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("usr/lib/tmpfiles.d/thp.conf", f"w! {PATH}/enabled - - - - never\n"),
        ("etc/systemd/system/no-thp.service", f"[Service]\nExecStart=/bin/sh -c 'echo never > {PATH}/enabled'\n"),
        (
            "etc/systemd/system/db.service.d/thp.conf",
            f"[Service]\nExecStart=/bin/sh -c 'echo never >{PATH}/enabled'",
        ),
        ("etc/sysfs.d/thp.conf", "kernel/mm/transparent_hugepage/enabled = never\n"),
        ("etc/rc.local", f"echo never > {PATH}/enabled\n"),
    ],
)
def test_a_file_that_sets_the_switch(tmp_path: Path, file: str, text: str) -> None:
    write(tmp_path / file, text)
    assert find_settings("enabled", "never", tmp_path) == [f"/{file}"]
    assert find_settings("enabled", "madvise", tmp_path) == []
    assert find_settings("defrag", "never", tmp_path) == []


@pytest.mark.parametrize(
    "text",
    [
        f"# w {PATH}/enabled - - - - never\n",
        f"w {PATH}/enabled - - - - madvise\n",
        f"w {PATH}/khugepaged/defrag - - - - never\n",
        f"w {PATH}/enabled_never - - - - always\n",
    ],
)
def test_a_file_that_does_not(tmp_path: Path, text: str) -> None:
    write(tmp_path / "etc/tmpfiles.d/thp.conf", text)
    assert find_settings("enabled", "never", tmp_path) == []


def test_defer_is_not_defer_and_madvise(tmp_path: Path) -> None:
    write(tmp_path / "etc/tmpfiles.d/thp.conf", f"w {PATH}/defrag - - - - defer+madvise\n")
    assert find_settings("defrag", "defer+madvise", tmp_path) == ["/etc/tmpfiles.d/thp.conf"]
    assert find_settings("defrag", "defer", tmp_path) == find_settings("defrag", "madvise", tmp_path) == []


def test_the_active_profile_of_tuned_and_what_it_includes(tmp_path: Path) -> None:
    write(tmp_path / "etc/tuned/active_profile", "mine\n")
    write(tmp_path / "etc/tuned/mine/tuned.conf", "[main]\ninclude=throughput, mine\n")
    write(tmp_path / "usr/lib/tuned/throughput/tuned.conf", "[vm]\ntransparent_hugepages=always\n")
    write(tmp_path / "usr/lib/tuned/other/tuned.conf", "[vm]\ntransparent_hugepages=always\n")
    assert find_settings("enabled", "always", tmp_path) == ["/usr/lib/tuned/throughput/tuned.conf"]


def test_a_machine_without_such_files(tmp_path: Path) -> None:
    assert find_settings("enabled", "never", tmp_path) == []
