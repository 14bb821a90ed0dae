"""Made-up measurements in which nothing changes, as real ones are built: blocks that differ, samples inside that do,
too.

Every world is drawn from a seed; nothing in it regressed, so that each alarm on it is a false one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from hugepage_gate.samples import (
    Block,
    Direction,
    Kind,
    SampleSet,
    Series,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)
_ENVIRONMENT = {"arch": "x86_64", "cpu_model": "simulated"}
_LEVEL = 100.0

Noise = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], Noise]


@dataclass(frozen=True)
class World:
    """``draw`` returns the logarithms of the samples of one metric, a row per block.

    ``host`` is the machine that all blocks are of, None where nobody recorded of which they are.
    """

    name: str
    draw: Draw
    blocks: int = 22
    samples: int = 10
    host: str | None = "lab7"

    def sample_set(self, seed: int, metrics: int) -> SampleSet:
        """Return ``metrics`` metrics of this world."""
        random = np.random.default_rng(seed)
        return SampleSet(
            self.name,
            "simulated",
            _ENVIRONMENT if self.host is None else {**_ENVIRONMENT, "hostname": self.host},
            {},
            tuple(
                _series(f"metric{number:03}", _LEVEL * np.exp(self.draw(random, self.blocks, self.samples)))
                for number in range(metrics)
            ),
        )


def _series(name: str, rows: Noise) -> Series:
    blocks = tuple(Block(row, 0, _START + timedelta(days=day), f"day{day}") for day, row in enumerate(rows))
    return Series(name, "s", Direction.LOWER, Kind.MEASURED, "", blocks)


def hierarchical(random: np.random.Generator, between: Noise, within: float, samples: int) -> Noise:
    """Return samples around block levels ``between``."""
    return np.asarray(between[:, None] + random.normal(0, within, (len(between), samples)))


def quiet_machine(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """Sessions of one quiet machine: 0.2 to 0.5 % between, 1 % within; metrics differ."""
    return hierarchical(random, random.normal(0, random.uniform(0.002, 0.005), blocks), 0.01, samples)


def very_quiet_machine(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """The same at 0.18 % between, as measured on a workstation."""
    return hierarchical(random, random.normal(0, 0.0018, blocks), 0.005, samples)


def cloud(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """Virtual machines: 3 % between with heavy tails, 0.5 % within."""
    return hierarchical(random, 0.03 * random.standard_t(4, blocks), 0.005, samples)


def unrecorded_hosts(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """Virtual machines on one of four hosts, which differ by 2 % and are not recorded; the half stay for the next day.

    On one host sessions differ by 0.3 %, runs by 0.5 %.
    """
    hosts = random.normal(0, 0.02, 4)
    drawn = random.integers(len(hosts), size=blocks)
    for day in range(1, blocks):
        if random.random() < 0.5:  # noqa: PLR2004 - the half
            drawn[day] = drawn[day - 1]
    return hierarchical(random, hosts[drawn] + random.normal(0, 0.003, blocks), 0.005, samples)


def jvm_forks(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """Processes of a JVM: 2.1 % between, and every fourth compiles the hot loop 6 % slower; 4.6 % within."""
    slow = 0.06 * (random.random(blocks) < 0.25)  # noqa: PLR2004 - every fourth
    return hierarchical(random, slow + random.normal(0, 0.021, blocks), 0.046, samples)


def autocorrelated(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """Seconds of a database run: each hangs on the one before (0.9); 1 % between runs."""
    noise = random.normal(0, 0.03 * np.sqrt(1 - 0.9**2), (blocks, samples))
    noise[:, 0] /= np.sqrt(1 - 0.9**2)
    for second in range(1, samples):
        noise[:, second] += 0.9 * noise[:, second - 1]
    return np.asarray(noise + random.normal(0, 0.01, blocks)[:, None])


def drift(random: np.random.Generator, blocks: int, samples: int) -> Noise:
    """A machine that wanders from session to session: steps of 0.1 %, 0.3 % around that."""
    return hierarchical(
        random, np.cumsum(random.normal(0, 0.001, blocks)) + random.normal(0, 0.003, blocks), 0.01, samples
    )


WORLDS = (
    World("very quiet machine", very_quiet_machine),
    World("quiet machine", quiet_machine),
    World("cloud VMs", cloud),
    World("unrecorded hosts", unrecorded_hosts, host=None),
    World("JVM forks", jvm_forks, samples=20),
    World("seconds, AR(1)", autocorrelated, samples=300),
    World("drift", drift),
)
