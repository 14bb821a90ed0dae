"""What the searches by Hypothesis share: an example takes as long as it takes, and nothing is stored."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.configuration import set_hypothesis_home_dir


def search_settings(phases: tuple[Phase, ...], examples: int, steps: int = 1) -> settings:
    """Return the settings of a search that tries ``examples``, programs of at most ``steps`` operations."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def nothing_stored() -> Iterator[None]:
    """Keep Hypothesis from leaving a directory where the user is.

    Without a database, too, it stores the constants of modules outside site-packages (6.131), such as those of a suite
    that runs from its sources. It does without where it cannot.
    """
    set_hypothesis_home_dir(os.devnull)
    try:
        yield
    finally:
        set_hypothesis_home_dir(None)
