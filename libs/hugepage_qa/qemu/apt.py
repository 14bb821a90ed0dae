"""A private apt root: packages of any Debian architecture without touching the machine's own apt state."""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from debian.deb822 import Deb822, Packages, PkgRelation

from hugepage_qa.cache import write_atomically
from hugepage_qa.errors import InputError
from hugepage_qa.process.child import Completed, run_to_end
from hugepage_qa.qemu.package_archive import Package

APT_DIRECTORY = Path("/etc/apt")

_TRIES = 3
_PAUSE = 3.0
"""Seconds between two tries: an index in the middle of a mirror's update is whole again soon."""

_FRESH_SECONDS = 3600
"""How long the indices serve without an update."""

# The machine's own configuration is read first (proxy, certificates). Its hooks would touch the machine.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "{root}/state";
Dir::State::lists "{root}/lists";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{root}/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""

#: what the names of Debian's kernel packages begin with; the release follows, what ``uname -r`` prints
KERNEL_PREFIX = "linux-image-"

_KERNEL_PARTS = re.compile(r"linux-(?:image|binary|base|modules)-")
_ARCHIVE_KEYRING = re.compile(r"(?:debian|ubuntu)-archive")


@dataclass(frozen=True)
class _Record:
    """What the index says about one version of a package."""

    package: str
    version: str
    depends: tuple[str, ...]


class AptRoot:
    """One private apt root for one architecture and one choice of suites."""

    def __init__(self, root: Path, architecture: str, suite: str | None, report: Callable[[str], None]) -> None:
        self._root = root
        self._architecture = architecture
        self._suite = suite
        self._report = report
        self._missing: list[str] = []

    def fetch_kernel(self, package: str) -> Package:
        """Download kernel ``package``: through its Depends down to those that hold image, configuration and modules.

        Up to 6.x linux-image-VERSION holds them; later it depends on linux-binary-, -base- and -modules-VERSION.
        Raises InputError when no version of it can be fetched.
        """
        return self._fetch_newest(package, self._kernel_parts)

    def fetch(self, package: str) -> Package:
        """Download ``package`` alone; errors as in fetch_kernel."""
        return self._fetch_newest(package, lambda record: [record])

    def kernels(self, metapackage: str) -> list[str]:
        """Return the kernel packages of all versions that are of the flavour of ``metapackage``, in no order.

        ``linux-image-cloud-amd64`` stands for ``linux-image-6.16.3+deb13-cloud-amd64`` and its like.
        """
        self._update()
        flavour = metapackage.removeprefix(KERNEL_PREFIX)
        version = re.compile(rf"{KERNEL_PREFIX}\d[^-]*(?:-(?:rc)?\d[^-]*)*-{flavour}")
        names = self._run(["apt-cache", "pkgnames", KERNEL_PREFIX]).stdout.split()
        return list(filter(version.fullmatch, names))

    def _fetch_newest(self, package: str, parts: Callable[[_Record], list[_Record]]) -> Package:
        self._update()
        records = self._records(package)
        if not records:
            # it may be in an index that was missing: the next run fetches them all again
            self._stamp.unlink(missing_ok=True)
            later = ", of which an index is missing: try again later" if self._missing else ""
            raise InputError(f"no package {package} for {self._architecture} in {self._where()}{later}")
        for record in records:
            wanted = parts(record) or [record]
            files = [self._download(part) for part in wanted]
            if all(files):
                return Package(wanted[0].package, record.version, tuple(file for file in files if file))
            self._report(f"{record.package} {record.version} cannot be fetched, trying the version before it")
        raise InputError(f"package {package} for {self._architecture}: no version can be fetched from {self._where()}")

    def _where(self) -> str:
        return f"suite {self._suite}" if self._suite else "the suites of this machine"

    def _kernel_parts(self, metapackage: _Record) -> list[_Record]:
        """Return the packages of ``metapackage`` that may hold image or configuration, the image's own first."""
        found = {metapackage.package: metapackage}
        queue = [metapackage]
        while queue:
            for name in filter(_KERNEL_PARTS.match, queue.pop().depends):
                same = [part for part in self._records(name) if part.version == metapackage.version]
                if name not in found and same:
                    found[name] = same[0]
                    queue.append(same[0])
        return sorted((part for part in found.values() if not _only_names_others(part)), key=_image_first)

    def _records(self, package: str) -> list[_Record]:
        """Return what the indices say about ``package``, newest version first."""
        answer = self._run(["apt-cache", "show", package])
        # without python-apt: the answer is text, and the same everywhere
        return list(map(_record, Packages.iter_paragraphs(answer.stdout, use_apt_pkg=False)))

    def _download(self, record: _Record) -> Path | None:
        """Return the package file of ``record``, None when it cannot be fetched."""
        downloads = self._root / "downloads"
        downloads.mkdir(exist_ok=True)
        for file in downloads.glob(f"{record.package}_*.deb"):
            file.unlink()
        self._report(f"downloading {record.package} {record.version} ({self._architecture})")
        answer = self._run(["apt-get", "-q", "download", f"{record.package}={record.version}"], downloads)
        for failure in _failures(answer):
            self._report(failure)
        return next(downloads.glob(f"{record.package}_*.deb"), None)

    def _run(self, command: Sequence[str], directory: Path | None = None) -> Completed:
        program, *arguments = command
        words = [program, "-c", str(self._root / "apt.conf"), *arguments]
        return run_to_end(words, directory=directory or self._root, environment={**os.environ, "LC_ALL": "C.UTF-8"})

    def _update(self) -> None:
        """Fetch the indices. What stays missing after some tries is reported: the other indices still serve."""
        if self._stamp.exists() and time.time() - self._stamp.stat().st_mtime < _FRESH_SECONDS:
            return
        self._write_configuration()
        self._report(f"fetching package indices ({self._architecture}, {self._where()})")
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            self._missing = _failures(self._run(["apt-get", "-q", "update"]))
            if not self._missing:
                break
        for failure in self._missing:
            self._report(f"package index missing: {failure}")
        if any((self._root / "lists").glob("*_Packages*")):
            self._stamp.touch()

    @property
    def _stamp(self) -> Path:
        """What is touched when indices come."""
        return self._root / "updated"

    def _write_configuration(self) -> None:
        for name in ("state", "lists/partial", "cache/archives/partial", "sources"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        text = _CONFIGURATION.format(architecture=self._architecture, root=self._root)
        write_atomically(self._root / "apt.conf", text.encode())
        write_atomically(self._root / "status", b"")
        sources = select_sources(read_sources(APT_DIRECTORY), self._suite)
        write_atomically(self._root / "sources" / "private.sources", format_sources(sources).encode())


def _only_names_others(record: _Record) -> bool:
    """True for a metapackage: its name holds no version, and what it depends on does."""
    return any(_KERNEL_PARTS.match(name) for name in record.depends) and not re.search(r"\d+\.\d+", record.package)


def _image_first(record: _Record) -> int:
    order = ("linux-binary-", "linux-image-", "linux-base-")
    return next((place for place, prefix in enumerate(order) if record.package.startswith(prefix)), len(order))


def _record(stanza: Packages) -> _Record:
    text = stanza.get("Depends")
    # of alternatives the first one is what apt would install
    depends = [alternatives[0]["name"] for alternatives in PkgRelation.parse_relations(text)] if text else []
    return _Record(stanza.get("Package", ""), stanza.get("Version", ""), tuple(filter(None, depends)))


def _failures(answer: Completed) -> list[str]:
    """Return what apt-get could not fetch; empty when all is there."""
    lines = [line for line in answer.stderr.splitlines() if re.match(r"[EW]: Failed to fetch", line)]
    if answer.returncode != 0 and not lines:
        lines = [line for line in answer.stderr.splitlines() if line.startswith("E:")][:1] or ["apt-get failed"]
    return [re.sub(r"\s+", " ", line)[:300] for line in lines]


def parse_stanzas(text: str) -> list[dict[str, str]]:
    """Return the fields of each deb822 stanza, names in lower case; continuation lines stay in the value."""
    stanzas = Deb822.iter_paragraphs(text, use_apt_pkg=False)
    return [{name.lower(): value for name, value in stanza.items()} for stanza in stanzas]


def parse_one_line(line: str) -> dict[str, str] | None:
    """Return the fields of ``deb [option=value] URI SUITE COMPONENT...``, None for any other line."""
    match = re.fullmatch(r"deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>.*)", line.strip())
    if match is None:
        return None
    fields = {"types": "deb", "uris": match["uri"], "suites": match["suite"]}
    fields["components"] = match["rest"].split("#", 1)[0].strip()
    for word in (match["options"] or "").split():
        name, _, value = word.partition("=")
        fields[name.lower()] = value.replace(",", " ")
    return fields


def read_sources(directory: Path) -> list[dict[str, str]]:
    """Return all enabled package sources below ``directory`` (/etc/apt), in both formats that apt knows."""
    parts = directory / "sources.list.d"
    found: list[dict[str, str]] = []
    for file in [directory / "sources.list", *sorted(parts.glob("*.list"))]:
        if file.is_file():
            found += filter(None, map(parse_one_line, file.read_text(errors="replace").splitlines()))
    for file in sorted(parts.glob("*.sources")):
        found += [fields for fields in parse_stanzas(file.read_text(errors="replace")) if "uris" in fields]
    return [
        fields
        for fields in found
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() not in {"no", "false", "0"}
    ]


def select_sources(sources: list[dict[str, str]], suite: str | None) -> list[dict[str, str]]:
    """Return the distribution's own of ``sources``; with ``suite``, its main archive with that suite alone.

    A source signed by another key belongs to somebody else; one that names no key is trusted by apt's own key rings.
    Raises InputError when none is left.
    """
    own = [
        fields
        for fields in sources
        if "signed-by" not in fields or _ARCHIVE_KEYRING.search(fields["signed-by"]) or "\n" in fields["signed-by"]
    ]
    if suite is not None:
        # the security archive has other suite names, flat sources (suite "./") have none
        main = [fields for fields in own if "security" not in fields["uris"] and "/" not in fields["suites"]]
        own = [{**fields, "suites": suite} for fields in main[:1]]
    if not own:
        raise InputError(f"no Debian package source below {APT_DIRECTORY}: pass a kernel image of your own")
    return own


def format_sources(sources: list[dict[str, str]], *, targets: str | None = "Packages") -> str:
    """Return ``sources`` in deb822 format, of any architecture.

    ``targets`` are the kinds of indices that apt fetches; None for what each system's own configuration says.
    """
    dropped = {"types", "architectures", "arch", "enabled", "targets", "target"}
    kinds = {"types": "deb", **({"targets": targets} if targets else {})}
    kept = ({name: value for name, value in fields.items() if name not in dropped and value} for fields in sources)
    return "\n".join(Deb822({**kinds, **fields}).dump() for fields in kept)
