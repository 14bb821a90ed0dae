"""One robust number for a block of samples, and how many independent samples it really holds."""

import numpy as np
from scipy.fft import next_fast_len

from hugepage_qa.gate.samples import Samples

#: from here on the median, below the Hodges-Lehmann estimate, which wastes less of few samples
ENOUGH_FOR_MEDIAN = 15

#: standard deviation of a normal distribution over its median absolute deviation
MAD_TO_SIGMA = 1.4826

#: a sample that far above the median, in standard deviations by MAD, is an outlier
OUTLIER_SIGMAS = 10


def location(samples: Samples) -> float:
    """Return the median of ``samples``, or of fewer than 15 the Hodges-Lehmann estimate on the scale of ratios.

    Outliers move neither. The unit is that of the samples; 0 when too many of them are 0.
    """
    if len(samples) >= ENOUGH_FOR_MEDIAN:
        return float(np.median(samples))
    first, second = np.triu_indices(len(samples))
    return float(np.median(np.sqrt(samples[first] * samples[second])))


def middle_and_spread(samples: Samples) -> tuple[float, float]:
    """Return the median of ``samples`` and their standard deviation around it, by MAD: outliers count for neither."""
    middle = float(np.median(samples))
    return middle, MAD_TO_SIGMA * float(np.median(np.abs(samples - middle)))


def clip_outliers(samples: Samples) -> Samples:
    """Return ``samples`` clipped to 10 sigma: one interruption must not hide how all others hang together."""
    middle, sigma = middle_and_spread(samples)
    return np.clip(samples, middle - OUTLIER_SIGMAS * sigma, middle + OUTLIER_SIGMAS * sigma) if sigma > 0 else samples


def outlier_rate(samples: Samples, middle: float, sigma: float, worse: int) -> float:
    """Return the share of samples beyond ``middle`` + 10 ``sigma`` on the worse side: +1 above, -1 below."""
    return float(np.mean(worse * (samples - middle) > OUTLIER_SIGMAS * sigma)) if sigma > 0 else 0.0


def effective_size(samples: Samples) -> float:
    """Return how many independent samples tell as much about the mean as these, which come one after another.

    n over the integrated autocorrelation time, summed over pairs of lags as long as a pair is positive and no larger
    than the one before (Geyer 1992, initial monotone sequence). Between 1 and n. Outliers hide how the others hang
    together: clip them first.
    """
    count = len(samples)
    if count < ENOUGH_FOR_MEDIAN or (samples == samples[0]).all():
        return float(count)
    correlation = _autocorrelation(samples)
    pairs = correlation[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    return float(np.clip(count / max(2 * kept.sum() - 1, 1.0), 1, count))


def _autocorrelation(samples: Samples) -> Samples:
    count = len(samples)
    centred = samples - samples.mean()
    size = next_fast_len(2 * count - 1, real=True)
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:count]
    return np.asarray(covariance / covariance[0], dtype=np.float64)
