"""Nothing in a live case comes from the machine that Python runs on: the machine under test may be another one."""

import ast
from functools import cache
from pathlib import Path

import pytest
from tests.unit.test_import_order import MODULES, imported, imports

TESTS = Path(__file__).resolve().parents[2]
#: what is tested there is a machine that this one starts, or this one
OF_THIS_MACHINE = {"bench", "boot", "guest", "kernel", "performance", "reboot", "unit", "vt"}
#: settings and results of a run, and the sources of the suite itself
ABOUT_THE_RUN = {
    "hugepage_qa.cases.expectations",
    "hugepage_qa.cases.hypothesis_search",
    "hugepage_qa.cases.result",
    "hugepage_qa.cases.run_settings",
}
#: modules that tell of the machine that Python runs on, or act on it
FORBIDDEN = {
    *("ctypes", "glob", "pathlib", "platform", "resource", "shutil", "socket", "struct", "subprocess", "sys"),
    "tempfile",
}
#: what has the same value on x86_64, aarch64, ppc64le and s390x: include/uapi/asm-generic/{fcntl,mman-common}.h,
#: include/uapi/linux/{fadvise,fcntl,memfd}.h and what their architectures have instead
THE_SAME = {
    "fcntl": {
        *("FD_CLOEXEC", "F_ADD_SEALS", "F_GETFD", "F_GET_SEALS"),
        *("F_SEAL_GROW", "F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_WRITE"),
    },
    "mmap": {
        *("MAP_ANONYMOUS", "MAP_PRIVATE", "MAP_SHARED", "PROT_EXEC", "PROT_READ", "PROT_WRITE"),
        *("MADV_DOFORK", "MADV_DONTFORK", "MADV_DONTNEED", "MADV_FREE", "MADV_RANDOM", "MADV_REMOVE", "MADV_WILLNEED"),
    },
    "os": {
        *(
            "O_APPEND",
            "O_CREAT",
            "O_EXCL",
            "O_NONBLOCK",
            "O_PATH",
            "O_RDONLY",
            "O_RDWR",
            "O_TRUNC",
            "O_WRONLY",
            "SEEK_CUR",
            "SEEK_DATA",
            "SEEK_END",
            "SEEK_HOLE",
            "SEEK_SET",
        ),
        *("MFD_ALLOW_SEALING", "MFD_CLOEXEC", "MFD_HUGETLB", "POSIX_FADV_SEQUENTIAL", "POSIX_FADV_WILLNEED"),
    },
}


@cache
def sources() -> list[Path]:
    """Return the files of the live cases, and the modules of cases that they use."""
    files = [file for file in sorted(TESTS.glob("*/*.py")) if file.parent.name not in OF_THIS_MACHINE]
    found: set[str] = set()
    queue = [name for file in files for name in imported(file)]
    while queue:
        name = queue.pop()
        if name not in found | ABOUT_THE_RUN:
            found.add(name)
            queue += imports()[name]
    return [*files, *(MODULES[name] for name in sorted(found) if name.startswith("hugepage_qa.cases."))]


def of_this_machine(source: str) -> list[str]:
    """Return what ``source`` has from the machine that Python runs on."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names if one.name.partition(".")[0] in FORBIDDEN]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in FORBIDDEN | set(THE_SAME):
                found.append(module)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name not in THE_SAME.get(module, {name}):
                found.append(f"{module}.{name}")
            case ast.Call(func=ast.Name(id="open")):
                found.append("open")
    return found


@pytest.mark.parametrize("source", sources(), ids=lambda source: str(source.stem))
def test_a_live_case_has_nothing_from_this_machine(source: Path) -> None:
    assert of_this_machine(source.read_text(encoding="utf-8")) == []


def test_cases_and_what_they_use_are_looked_at() -> None:
    names = {source.stem for source in sources()}
    assert {"mapping", "every_kernel", "live", "userfaultfd", "random_actions"} <= names


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("part = mmap.PAGESIZE", ["mmap.PAGESIZE"]),
        ("from mmap import PAGESIZE", ["mmap"]),
        ("os.uname().machine", ["os.uname"]),
        ("os.sysconf('SC_PAGESIZE')", ["os.sysconf"]),
        ("live.open(actor, '/var/tmp', os.O_RDWR | os.O_DIRECT)", ["os.O_DIRECT"]),
        ("import platform", ["platform"]),
        ("import struct", ["struct"]),
        ("os.path.exists('/proc')", ["os.path"]),
        ("open('/proc/meminfo')", ["open"]),
        ("live.open(actor, path, os.O_RDWR)", []),
    ],
)
def test_what_this_machine_has_is_seen(source: str, found: list[str]) -> None:
    assert of_this_machine(source) == found
