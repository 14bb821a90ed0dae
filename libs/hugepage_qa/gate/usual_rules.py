"""What is usually done, to set the gate against: the samples of the newest baseline block and of the first new one."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.stats import mannwhitneyu, ttest_ind

from hugepage_qa.gate.samples import Samples

_SIGNIFICANT = 0.05
_FIXED_THRESHOLD = 0.05
_FEWEST = 2

#: whether the second samples are taken for worse than the first; larger is worse
Rule = Callable[[Samples, Samples], bool]


def mann_whitney(baseline: Samples, new: Samples) -> bool:
    """Mann-Whitney, two-sided p < 0.05 (benchstat), and the median is worse."""
    if np.median(new) <= np.median(baseline):
        return False
    return bool(mannwhitneyu(baseline, new, method="asymptotic").pvalue < _SIGNIFICANT)


def welch(baseline: Samples, new: Samples) -> bool:
    """Welch's t-test, two-sided p < 0.05, and the mean is worse."""
    if new.mean() <= baseline.mean() or min(len(baseline), len(new)) < _FEWEST:
        return False
    return bool(ttest_ind(baseline, new, equal_var=False).pvalue < _SIGNIFICANT)


def fixed_threshold(baseline: Samples, new: Samples) -> bool:
    """The mean is more than 5 % worse."""
    return bool(new.mean() > baseline.mean() + _FIXED_THRESHOLD * abs(baseline.mean()))


USUAL_RULES: Mapping[str, Rule] = {"Mann-Whitney": mann_whitney, "Welch": welch, "fixed 5 %": fixed_threshold}
