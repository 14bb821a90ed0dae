"""The order of blocks: drawn for each session, and mirrored, so that a drift hits all configurations alike."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One block to measure: ``order`` is its place among the blocks of ``workload`` in ``session``, from 0."""

    session: int
    workload: str
    order: int
    configuration: str

    @property
    def name(self) -> str:
        """The name of the file that holds it; sorts by time."""
        return f"{self.session:04}-{self.workload}-{self.order:02}-{self.configuration}"


def draw_session(seed: int, session: int, configurations: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Return the cells of one session: workloads in turn, each as ABC...CBA with its ``configurations`` A, B, C drawn.

    The same seed and session give the same order, however many sessions there are.
    """
    generator = random.Random(f"{seed}/{session}")  # noqa: S311 - an order, no secret
    cells = []
    for workload in generator.sample(list(configurations), len(configurations)):
        drawn = generator.sample(list(configurations[workload]), len(configurations[workload]))
        mirrored = [*drawn, *reversed(drawn)]
        cells += [Cell(session, workload, order, name) for order, name in enumerate(mirrored)]
    return cells
