"""The live cases in the files below tests/: which areas they define."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from hugepage_qa.cases.case import Area
from hugepage_qa.errors import InputError

#: folders of areas whose cases act on pools, memory and text: what a throwaway machine can do, too
LIVE = (
    *("accounting", "cgroup", "files", "hwpoison", "ksm", "kvm", "memory", "mlock", "numa", "pool", "reservation"),
    *("swap", "text", "thp", "userfaultfd"),
)
#: where the tests lie: in a checkout, and where the packages of distributions put them
_PLACES = (Path(__file__).resolve().parents[3] / "tests", Path("/usr/share/hugepage-qa/tests"))


def tests_directory() -> Path:
    """Return the directory of the tests. Raises InputError where only the library is installed."""
    for place in _PLACES:
        if (place / "main.fmf").is_file():
            return place
    raise InputError(f"no tests in {' or '.join(map(str, _PLACES))}: run it from a checkout, or install the package")


def read_areas(file: Path) -> list[Area]:
    """Return the areas that ``file`` defines, which is imported. Raises InputError when it cannot be."""
    return areas_of(load_module(file))


def load_module(file: Path) -> ModuleType:
    """Import ``file``. Raises InputError when it cannot be."""
    specification = importlib.util.spec_from_file_location(f"live_{file.parent.name}_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise InputError(f"{file}: expected a Python file")
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # whatever a file of tests does at its import
        raise InputError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from error
    return module


def areas_of(module: ModuleType) -> list[Area]:
    """Return the areas that ``module`` defines; an area can have several names."""
    return list({id(value): value for value in vars(module).values() if isinstance(value, Area)}.values())


def live_areas(folders: tuple[str, ...] = LIVE) -> Iterator[Area]:
    """Yield the areas of the tests in ``folders``, or of one file: ``pool/demote``, with dashes as in names of results.

    Raises InputError for what is neither.
    """
    directory = tests_directory()
    for folder in folders:
        file = directory / f"{folder.replace('-', '_')}.py"
        files = [file] if file.is_file() else sorted((directory / folder).glob("*.py"))
        if folder.partition("/")[0] not in LIVE or not files:
            raise InputError(
                f"area {folder}: expected one of {', '.join(LIVE)}, or a file below it, such as pool/demote"
            )
        for each in files:
            yield from read_areas(each)
