"""The Phoronix Test Suite: every test with its arguments is a metric, every run of it a sample.

Specified by https://github.com/phoronix-test-suite/phoronix-test-suite,
pts-core/openbenchmarking.org/schemas/result-file.xsd: ``composite.xml`` of a saved result of one system. Its software,
which has the kernel in it, is no fact here: the kernel may be what is judged. Tests without a number are left out.
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from hugepage_gate.importers.foreign_series import ForeignSeries, Origin, one_session
from hugepage_gate.input_file import number, read_text
from hugepage_gate.sample_format import parse_time
from hugepage_gate.samples import Direction, SampleSet, Scalar
from hugepage_qa.errors import InputError

_GOOD = {"LIB": Direction.LOWER, "HIB": Direction.HIGHER}
_UNITS = {"Seconds": "s", "ms": "ms", "us": "us", "ns": "ns", "Milliseconds": "ms", "Microseconds": "us"}

#: others are pictures, pass or fail, and what was monitored meanwhile
_OF_NUMBERS = "BAR_GRAPH"


def read_phoronix(path: Path, origin: Origin) -> SampleSet:
    """Return the tests in the file ``path``. Raises InputError, also for the results of several systems."""
    root = _parse(path)
    systems = root.findall("System")
    names = [_text(one, "Identifier") for one in systems]
    if len(names) != 1:
        raise InputError(
            f"{path}: results of {', '.join(names) or 'no system'}, expected one system; "
            "phoronix-test-suite extract-from-result-file makes a file of each"
        )
    stamp, hardware = _text(systems[0], "TimeStamp"), _text(systems[0], "Hardware")
    started = parse_time(stamp, str(path)) if stamp else None
    found = [
        ForeignSeries(
            " ".join(
                filter(None, (_text(result, "Identifier") or _text(result, "Title"), _text(result, "Description")))
            ),
            _UNITS.get(_text(result, "Scale"), _text(result, "Scale") or "none"),
            [values],
            _GOOD.get(_text(result, "Proportion")),
            starts=(started,),
        )
        for result in root.findall("Result")
        if _text(result, "DisplayFormat") == _OF_NUMBERS
        for values in [list(_values(result, path))]
        if values
    ]
    facts: dict[str, Scalar] = {"hardware": " ".join(hardware.split())} if hardware else {}
    return one_session(path, origin, found, facts)


def _parse(path: Path) -> ElementTree.Element:
    text = read_text(path)
    # entities may grow without bounds, and name other files
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(f"{path}: expected XML without a document type")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - without a document type there are no entities
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"{path}: expected XML, is the file truncated? ({error})") from error
    if root.tag != "PhoronixTestSuite":
        raise InputError(f"{path}: expected the element PhoronixTestSuite, got {root.tag[:50]}")
    return root


def _text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _values(result: ElementTree.Element, path: Path) -> Iterator[float]:
    """Yield the runs of a test; where they are not told, their mean. A run that failed has no value."""
    for entry in result.findall("Data/Entry"):
        for value in (_text(entry, "RawString") or _text(entry, "Value")).split(":"):
            if value:
                yield number(value, f"{path}: {_text(result, 'Identifier')}")
