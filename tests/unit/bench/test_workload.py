"""Where the programs of workloads are looked for, before they are installed."""

from pathlib import Path

from hugepage_qa.bench.databases import PROGRAMS
from hugepage_qa.bench.workload import Program


def test_a_program_outside_of_path_is_found_in_its_newest_version(tmp_path: Path) -> None:
    for version in ("15", "17"):
        (tmp_path / version / "bin").mkdir(parents=True)
        (tmp_path / version / "bin" / "initdb").touch()
    program = Program("initdb", "postgresql", "postgresql-server", f"{tmp_path}/*/bin/initdb".lstrip("/"))
    assert program.installed() == str(tmp_path / "17" / "bin" / "initdb")


def test_a_program_that_is_nowhere_is_asked_for_by_name(tmp_path: Path) -> None:
    missing = Program("initdb", "postgresql", "postgresql-server", f"{tmp_path}/*/bin/initdb".lstrip("/"))
    assert missing.installed() == "initdb"
    assert Program("cc", "build-essential", "gcc").installed() == "cc"


def test_the_client_of_postgresql_does_not_stand_for_its_server() -> None:
    assert {"initdb", "pgbench"} == {program.name for program in PROGRAMS}
