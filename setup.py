"""Packaging of hugepage-qa."""

from pathlib import Path

from setuptools import find_packages, setup

# below the prefix: "tmt --root PREFIX/share/hugepage-qa run" runs the plans of an installed suite
SHARE = "share/hugepage-qa"
# what a root of fmf and its tests consist of
SHARED = [".fmf/version", "plans/*.fmf", "ci/*.sh", "tests/*", "tests/*/**/*"]
# the library's own tests need the sources
NOT_SHARED = {"unit", "bench", "__pycache__", ".hypothesis"}


def shared_files() -> "list[tuple[str, list[str]]]":
    """Return directory -> files, for what tmt reads."""
    files = sorted(file for pattern in SHARED for file in Path().glob(pattern) if file.is_file())
    wanted = [file for file in files if not NOT_SHARED.intersection(file.parts)]
    return [(f"{SHARE}/{file.parent}", [str(file)]) for file in wanted]


# avocado-framework 113 imports pkg_resources, which setuptools 82 removed (avocado issue 6271)
AVOCADO = ["avocado-framework>=113", "setuptools<82"]
TMT = ["tmt>=1.78", "fmf>=1.7"]
# the statistics of the performance gate; everything else works without them
GATE = ["numpy>=1.24", "scipy>=1.11"]
# pictures in the report of the gate
REPORT = [*GATE, "matplotlib>=3.6"]
# change points in the history of a metric; never needed for a verdict
HISTORY = [*GATE, "apache-otava>=0.8"]
# speaks to a QEMU: the lab resets machines by it, and it drives guests under QEMU alone. It has no dependencies; who
# asks for its extra, as when it was optional, still gets it
QEMU = ["qemu.qmp>=0.0.3"]
# ci/guest-packages.sh installs the same; libvirt-python is built, with the headers of libvirt and Python
GUEST = [*QEMU, "libvirt-python>=9"]
# with GUEST what tests/vt needs, the test provider of avocado-vt. Best in an environment of its own: as long as it is
# not bootstrapped, avocado-vt complains in every Avocado command
AEXPECT = ["aexpect>=1.8"]
VT = [*AVOCADO, *AEXPECT, "avocado-framework-plugin-vt>=113"]
# python ci/build_docs.py
DOCS = ["sphinx>=7.4", "myst-parser>=3", "sphinx-click>=6", "furo>=2024.8.6"]
TEST = [
    # the published schemas of files for CI systems are in it
    "check-jsonschema>=0.29",
    "build>=1",
    "pytest>=8",
    # on two cores "make test" takes half the time
    "pytest-xdist>=3.5",
    "ruff>=0.5",
    "mypy>=1.11",
    "types-PyYAML",
    "types-jsonschema",
]

setup(
    name="hugepage-qa",
    version="0.1.0",
    description="Distribution QA of Linux huge pages under tmt and Avocado",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="GPL-2.0-or-later",
    packages=find_packages("libs"),
    package_dir={"": "libs"},
    package_data={
        "hugepage_qa": [
            "**/*.yaml",
            "**/*.sh",
            "**/*.json",
            "**/*.c",
            "**/*.h",
            "**/*.j2",
            "**/*.md",
            "**/*.service",
            "py.typed",
        ],
        "hugepage_gate": ["schemas/*.json", "py.typed"],
    },
    data_files=shared_files(),
    python_requires=">=3.11",
    install_requires=[
        "click>=8.1",
        "rich>=13",
        "Jinja2>=3.1",
        "PyYAML>=6",
        "jsonschema>=4.20",
        "hypothesis>=6.100",
        "pyelftools>=0.30",
        "python-debian>=0.1.49",
        # modules of Fedora's kernels, and what is in the images of most
        "zstandard>=0.22",
        # what is in the images of Debian's 6.1
        "lz4>=4.0",
        *QEMU,
    ],
    extras_require={
        "avocado": AVOCADO,
        "tmt": TMT,
        # builds agents of throwaway machines where no cross compiler of the distribution does
        "cross": ["ziglang>=0.13"],
        "docs": [*AVOCADO, *TMT, *DOCS],
        "gate": GATE,
        "guest": GUEST,
        "history": HISTORY,
        "qemu": QEMU,
        "report": REPORT,
        "vt": VT,
        "test": [*AVOCADO, *TMT, *REPORT, *QEMU, *DOCS, *AEXPECT, *TEST],
    },
    entry_points={
        "console_scripts": ["hugepage-qa = hugepage_qa.cli:main"],
        # provision how: lab, report how: hugepage-gate, and their schemas; tmt imports them at every start
        "tmt.plugin": [
            "hugepage-qa = hugepage_qa.plugins.tmt_lab",
            "hugepage-qa-gate = hugepage_qa.plugins.tmt_gate",
        ],
        "tmt.resources": ["hugepage-qa = hugepage_qa.plugins"],
    },
)
