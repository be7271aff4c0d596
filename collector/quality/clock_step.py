"""The step of the clock that a profiler's durations were counted with, told by the durations.

An Ascend's kernel clock counts in 0.02 us: in four real profiles nearly all durations below 100 us
are multiples of it, rounding to 0.001 us aside. Repeats of a kernel of 1 us that all show 1.06 us
have no spread, and their mean is still unknown by half a step.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

_LEAST_SERIES = 3  # with fewer repeats of a case, equal ones may be chance
_TIED = 0.5  # of the repeats: so many are equal to another where a clock's steps show
_ROUNDING_US = 1e-6


def clock_step_us(series: Iterable[Sequence[float]]) -> float:
    """The step, from the durations of each case's repeats; 0.0 where none shows, as the durations
    of a clock that counts finely seldom agree."""
    steps = [step for durations_us in series if (step := _step_us(durations_us))]
    return round(median(steps), 6) if steps else 0.0


def _step_us(durations_us: Sequence[float]) -> float:
    """The smallest distance between durations of one case; 0.0 where they tell no step."""
    distinct = sorted({round(us, 6) for us in durations_us})
    is_tied = len(distinct) <= (1 - _TIED) * len(durations_us)
    if len(durations_us) < _LEAST_SERIES or not is_tied:
        return 0.0
    apart = (after - before for before, after in pairwise(distinct))
    return min((step for step in apart if step > _ROUNDING_US), default=0.0)
