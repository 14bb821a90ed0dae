"""What MariaDB's and perf's programs print, as they printed it, and what nobody should take for a figure."""

import pytest

from hugepage_qa.bench.backing import Backing, Kind
from hugepage_qa.bench.databases import parse_version
from hugepage_qa.bench.guest_database import parse_counters
from hugepage_qa.bench.mariadb_oltp import (
    MariadbOltp,
    connections_at_shares,
    parse_misses,
    parse_oltp,
    settings,
)
from hugepage_qa.errors import InputError
from hugepage_qa.sizes import GIB, MIB

OLTP = """\
SQL statistics:
    queries performed:
        read:                            37618
        write:                           10748
        other:                           5374
        total:                           53740
    transactions:                        2687   (1322.70 per sec.)
    queries:                             53740  (26454.09 per sec.)
    ignored errors:                      0      (0.00 per sec.)
    reconnects:                          0      (0.00 per sec.)
"""

COUNTED = "4312;;iTLB-load-misses:u;2002345678;100.00;;\n2156000;;instructions:u;2002345678;100.00;;\n"
#: a virtual machine without counters
NOT_COUNTED = "<not supported>;;iTLB-load-misses:u;0;100.00;;\n<not supported>;;instructions:u;0;100.00;;\n"

BASE, SHP, LARGE = (
    Backing(Kind.BASE, 4096),
    Backing(Kind.STATIC, 2 * MIB, is_default=True),
    Backing(Kind.STATIC, GIB),
)


def test_oltp() -> None:
    assert parse_oltp(OLTP) == 1322.70


@pytest.mark.parametrize(
    "output",
    [
        "",
        OLTP.replace("1322.70", "0.00"),
        OLTP.replace("1322.70", "13.22.70"),
        OLTP.replace("transactions:", "transaction:"),
        OLTP.replace("reconnects:                          0", "reconnects:                          3"),
        OLTP.partition("    reconnects")[0],
    ],
)
def test_oltp_that_did_not_do_it(output: str) -> None:
    with pytest.raises(InputError, match="sysbench"):
        parse_oltp(output)


@pytest.mark.parametrize(
    ("server", "text", "version", "unknown"),
    [
        (
            "mariadbd",
            "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)",
            "10.11.19",
            "mysqld  Ver 8.0.36 for Linux",
        ),
        ("postgres", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "15.18", "postgres 15"),
    ],
)
def test_version_of_a_server(server: str, text: str, version: str, unknown: str) -> None:
    assert parse_version(server, text) == version
    with pytest.raises(InputError, match=f"{server} --version: expected"):
        parse_version(server, unknown)


def test_static_pages_are_asked_for_by_name() -> None:
    parameters = MariadbOltp.profiles["quick"]
    assert settings(parameters, SHP)["large-pages"] == "1"
    assert settings(parameters, BASE)["large-pages"] == "0"


def test_pages_that_no_piece_of_the_buffer_pool_fills() -> None:
    assert MariadbOltp().backings([SHP, LARGE]) == (SHP,)


def test_text_of_the_server_is_huge_where_the_kernel_makes_it_so() -> None:
    names = [one.name for one in MariadbOltp().configurations([BASE])]
    assert names == ["4k", "hugetext-1", "hugetext-2", "hugetext-3", "hugetext-3-padded"]


@pytest.mark.parametrize(("cpus", "connections"), [(32, {25: 8, 50: 16, 100: 32}), (2, {50: 1, 100: 2}), (1, {100: 1})])
def test_connections_for_a_share_of_the_cpus(cpus: int, connections: dict[int, int]) -> None:
    assert connections_at_shares(cpus) == connections


def test_misses_per_thousand_instructions() -> None:
    assert parse_misses(COUNTED) == 2.0


@pytest.mark.parametrize(
    "output",
    [
        NOT_COUNTED,
        "",
        COUNTED.replace("instructions:u;2002345678;100.00", "instructions:u;2002345678;59.00"),
        COUNTED.replace("2156000", "0"),
        COUNTED.partition("\n")[0],
    ],
)
def test_counters_that_tell_nothing(output: str) -> None:
    with pytest.raises(InputError, match="perf"):
        parse_misses(output)


def test_counters_of_a_guest() -> None:
    found = parse_counters("PageTables:          5120 kB\nHugePages_Total:      64\npgfault 1234567\n")
    assert found == {"PageTables": 5120, "HugePages_Total": 64, "pgfault": 1234567}
