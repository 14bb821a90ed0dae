"""Which kernels of Debian there may be, and how they are chosen."""

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.boards import BOARDS
from hugepage_qa.qemu.debian_kernels import SUITES, DebianKernel, all_kernels, choose_kernels


def names(*patterns: str) -> list[str]:
    return [kernel.name for kernel in choose_kernels(patterns)]


def test_every_suite_has_every_architecture_and_no_kernel_comes_twice() -> None:
    kernels = list(all_kernels())
    assert {(suite, board) for suite in SUITES for board in BOARDS} <= {
        (kernel.suite, kernel.architecture) for kernel in kernels
    }
    assert len({kernel.name for kernel in kernels}) == len(kernels) == len(names())


def test_a_choice_is_a_name_a_suite_or_a_pattern_in_the_order_of_suites() -> None:
    assert names("sid/s390x", "trixie/x86_64") == ["trixie/x86_64", "sid/s390x"]
    assert names("trixie") == [
        "trixie/x86_64",
        "trixie/aarch64",
        "trixie/aarch64-16k",
        "trixie/ppc64le",
        "trixie/ppc64le-64k",
        "trixie/s390x",
    ]
    assert names("*-16k") == [
        f"{suite}/aarch64-16k" for suite in ("bookworm-backports", "trixie", "trixie-backports", "forky", "sid")
    ]


def test_a_choice_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"^sid/vax: expected a kernel, .* such as sid/"):
        names("sid/s390x", "sid/vax")


def test_packages_are_those_of_debian() -> None:
    assert DebianKernel("sid", "x86_64").package == "linux-image-cloud-amd64"
    assert DebianKernel("sid", "aarch64", "16k").package == "linux-image-arm64-16k"
    assert DebianKernel("sid", "ppc64le", "64k").package == "linux-image-powerpc64le-64k"
