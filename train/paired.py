"""Paired differences: what a change does to accuracy when both networks are trained with the same seeds."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences, other minus base, with its confidence interval; in the unit of the values.

    `low` and `high` are None when fewer than two seeds have both values.
    """

    n: int
    mean: float | None
    low: float | None
    high: float | None

    @property
    def decided(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_difference(base: Mapping[int, float], other: Mapping[int, float], *, confidence: float = 0.95) -> Difference:
    """The mean difference over the seeds that both have, with its interval after Student's t.

    Args: base, other: value by seed. confidence: of the two-sided interval, between 0 and 1.
    Source: https://en.wikipedia.org/wiki/Student%27s_t-test#Dependent_t-test_for_paired_samples
    """
    from scipy.stats import t

    differences = [other[seed] - base[seed] for seed in sorted(base.keys() & other.keys())]
    n = len(differences)
    if n == 0:
        return Difference(0, None, None, None)
    mean = statistics.fmean(differences)
    if n == 1:
        return Difference(1, mean, None, None)
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(n, mean, mean - half, mean + half)
