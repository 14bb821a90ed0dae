"""The processor in the words of each architecture."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hugepage_qa.errors import InputError
from hugepage_qa.kernel.cpu import Cpu, read_cpu
from hugepage_qa.kernel.tree import CapturedTree

X86 = """\
processor\t: 0
model\t\t: 167
model name\t: QEMU Virtual CPU version 2.5+
flags\t\t: fpu pse pdpe1gb
bugs\t\t:

processor\t: 1
model name\t: QEMU Virtual CPU version 2.5+
flags\t\t: fpu pse pdpe1gb
"""
ARM64 = """\
processor\t: 0
Features\t: fp asimd evtstrm
CPU implementer\t: 0x41
CPU architecture: 8
CPU part\t: 0xd08
"""
S390 = """\
vendor_id       : IBM/S390
# processors    : 2
features\t: esan3 zarch stfle edat sie
facilities      : 0 1 2 8 76 77 78
processor 0: version = 00,  identification = 000002,  machine = 8561
processor 1: version = 00,  identification = 010002,  machine = 8561

cpu number      : 0
version         : 00
"""
POWERPC = """\
processor\t: 0
cpu\t\t: POWER9 (architected), altivec supported
clock\t\t: 1000.000000MHz

timebase\t: 512000000
platform\t: pSeries
model\t\t: IBM pSeries (emulated by qemu)
machine\t\t: CHRP IBM pSeries (emulated by qemu)
MMU\t\t: Hash
"""


def cpu(cpuinfo: str) -> Cpu:
    return read_cpu(CapturedTree({"proc/cpuinfo": cpuinfo}))


def test_x86() -> None:
    assert cpu(X86) == Cpu(None, frozenset({"fpu", "pse", "pdpe1gb"}), None, 2, "QEMU Virtual CPU version 2.5+")


def test_arm64() -> None:
    assert cpu(ARM64) == Cpu(None, frozenset({"fp", "asimd", "evtstrm"}), None, 1, "implementer 0x41 part 0xd08")


def test_s390() -> None:
    features = frozenset({"esan3", "zarch", "stfle", "edat", "sie", "edat1", "edat2"})
    assert cpu(S390) == Cpu(None, features, None, 2, "machine 8561")


def test_s390_facility_78_alone_tells_of_pages_of_2g() -> None:
    assert "edat2" not in cpu(S390.replace(" 78", " 780")).features


def test_powerpc() -> None:
    assert cpu(POWERPC) == Cpu(None, frozenset(), "Hash", 1, "POWER9 (architected), altivec supported")


def test_nothing_captured() -> None:
    assert read_cpu(CapturedTree({})) == Cpu(None, frozenset(), None, 0, None)


def test_base_page_size_is_that_of_the_first_mapping() -> None:
    smaps = "1000-2000 r-xp 0 00:00 1 /bin/x\nSize: 64 kB\nKernelPageSize:       64 kB\nMMUPageSize:  64 kB\n"
    tree = CapturedTree({"proc/self/smaps": smaps + "KernelPageSize:     2048 kB\n"})
    assert read_cpu(tree).base_page_size == 64 << 10


def test_malformed_page_size_is_named() -> None:
    with pytest.raises(InputError, match=r"^/proc/self/smaps, line 2: 'KernelPageSize: x'"):
        read_cpu(CapturedTree({"proc/self/smaps": "a\nKernelPageSize: x\n"}))


def test_every_capture_has_processors_and_pages(any_capture: CapturedTree) -> None:
    facts = read_cpu(any_capture)
    assert facts.count >= 1
    assert facts.base_page_size in {4 << 10, 16 << 10, 64 << 10}
    assert facts.model


@given(st.text() | st.text(alphabet="processor :0\t\n", max_size=40))
def test_nothing_but_input_error(text: str) -> None:
    try:
        assert read_cpu(CapturedTree({"proc/cpuinfo": text, "proc/self/smaps": f"KernelPageSize:{text}"})).count >= 0
    except InputError as error:
        assert "\n" not in str(error)
