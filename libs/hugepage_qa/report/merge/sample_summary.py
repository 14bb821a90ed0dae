"""What the report says of joined samples; it needs no numpy, which reading them does."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleSummary:
    """Samples of one machine, suite and subject. ``blocks`` is the smallest number that a series has."""

    file: str
    identity: str
    architecture: str
    cpu_model: str
    suite: str
    subject: Mapping[str, str]
    metrics: int
    blocks: int
    sessions: int
    hosts: tuple[str, ...]
