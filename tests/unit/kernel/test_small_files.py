"""Names of processes and of file systems, the command line, sysctls."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.facts import read_facts, read_process_names
from hugepage_qa.kernel.proc_tables import read_filesystems
from hugepage_qa.kernel.tree import CapturedTree, read_numbers


def test_only_numbers_are_processes() -> None:
    tree = CapturedTree({"proc/1/comm": "in it\n", "proc/33/comm": "khugepaged\n", "proc/self/comm": "cat\n"})
    assert read_process_names(tree) == {"in it", "khugepaged"}
    assert read_process_names(CapturedTree({"proc/cmdline": ""})) == frozenset()


def test_file_systems_with_and_without_a_device() -> None:
    assert read_filesystems(CapturedTree({"proc/filesystems": "nodev\thugetlbfs\n\text4\n"})) == {"hugetlbfs", "ext4"}


def test_command_line() -> None:
    assert read_facts(CapturedTree({"proc/cmdline": "a  b \n"})).command_line == "a  b "
    assert read_facts(CapturedTree({})).command_line == ""


def test_sysctls_that_the_kernel_has() -> None:
    assert read_numbers(
        CapturedTree({"proc/sys/vm/nr_hugepages": "4\n"}), "proc/sys/vm", ("nr_hugepages", "other")
    ) == {"nr_hugepages": 4}
    with pytest.raises(InputError, match=r"^/proc/sys/vm/nr_hugepages, line 1"):
        read_numbers(CapturedTree({"proc/sys/vm/nr_hugepages": "four\n"}), "proc/sys/vm", ("nr_hugepages",))
