"""The order of blocks: drawn, mirrored, and the same again for the same seed."""

from collections import Counter
from itertools import pairwise

from hugepage_qa.bench.workload import draw_session

WORKLOADS = ("page-access", "pgbench")
CONFIGURATIONS = ("4k", "thp", "shp-2M", "shp-1G")
PLANNED = dict.fromkeys(WORKLOADS, CONFIGURATIONS)


def test_a_drift_hits_all_configurations_alike() -> None:
    for session in range(1, 20):
        cells = draw_session(7, session, PLANNED)
        for workload in WORKLOADS:
            own = [cell for cell in cells if cell.workload == workload]
            assert [cell.order for cell in own] == list(range(2 * len(CONFIGURATIONS)))
            places = {name: sum(cell.order for cell in own if cell.configuration == name) for name in CONFIGURATIONS}
            assert len(set(places.values())) == 1


def test_workloads_are_not_interleaved() -> None:
    cells = draw_session(7, 1, PLANNED)
    changes = sum(one.workload != other.workload for one, other in pairwise(cells))
    assert changes == len(WORKLOADS) - 1


def test_the_order_is_drawn() -> None:
    firsts = Counter(draw_session(7, session, PLANNED)[0].configuration for session in range(400))
    assert set(firsts) == set(CONFIGURATIONS)
    assert min(firsts.values()) > 400 / len(CONFIGURATIONS) / 2


def test_the_same_seed_draws_the_same_and_another_one_something_else() -> None:
    drawn = [draw_session(seed, 3, PLANNED) for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2] or drawn[0] != drawn[3]


def test_names_of_cells_are_unique() -> None:
    cells = [cell for session in (1, 2) for cell in draw_session(7, session, PLANNED)]
    assert len({cell.name for cell in cells}) == len(cells)
