"""The shortest duration that a profiler tells, and how much of a number near it may be its own.

What has no work is recorded with a duration all the same: the profiler's own, or that of a launch.
Nobody knows how much of it a kernel shares that has some work. It is no noise, and no repeat and no
other session shows it, so that an interval reaches down by all of it.
"""

from collections.abc import Sequence

from collector.quality.statistics import percentile

# From ten times the floor on it is less than a tenth of a number, which is what two runs that agree
# may differ by. Below, all of it counts.
_NEAR = 10.0
_LEAST_LAUNCHES = 10
_LOW = 0.1  # of the launches without work: what disturbs one only lengthens it
_LEFT = 0.01  # of a lower end at least: a launch takes some time


def profiler_floor_us(idle_us: Sequence[float]) -> float:
    """The floor, from the durations that were recorded of launches without work; 0.0 where too few
    were."""
    if len(idle_us) < _LEAST_LAUNCHES:
        return 0.0
    return round(percentile(sorted(idle_us), _LOW), 6)


def is_near_floor(mean_us: float, floor_us: float) -> bool:
    """Whether a number is so near a floor that its intervals carry it."""
    return mean_us < _NEAR * floor_us


def lowered_us(low_us: float, mean_us: float, floor_us: float) -> float:
    """The lower end of a mean's interval with what the profiler cannot tell: that of noise alone
    where the mean is far from the floor."""
    if not is_near_floor(mean_us, floor_us) or low_us <= 0:
        return low_us
    return max(low_us - floor_us, _LEFT * low_us)
