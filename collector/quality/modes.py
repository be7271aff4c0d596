"""Whether the repeats of a case are of two kinds, of which a mean is neither.

A clock that is lowered, a neighbour on the other half of a core, an algorithm that is chosen anew:
then durations lie in two heaps with nothing between them. The outlier rule drops the smaller heap,
or widens until it takes both; either way somebody should know.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import median

_LEAST_REPEATS = 10
_LEAST_SHARE = 0.2  # of the repeats, in the smaller heap
_LEAST_RATIO = 1.15  # of the heaps' medians
_EMPTY = 0.5  # of the way between the medians holds no repeat
_STEPS = 3  # of the clock, at least, lie between the heaps
_OF_A_STEP = 0.1  # so far off whole numbers of the clock's step are durations that it counted


@dataclass(frozen=True, slots=True)
class Modes:
    """Two heaps of durations: their medians, and the share of repeats in the slower one."""

    fast_us: float
    slow_us: float
    slow_share: float

    def __str__(self) -> str:
        return (
            f"two modes: {self.slow_share:.0%} of the repeats take about {self.slow_us:.4g} us, "
            f"the others {self.fast_us:.4g} us"
        )


def two_modes(durations_us: Sequence[float], step_us: float = 0.0) -> Modes | None:
    """The two heaps that durations lie in; None where they lie in one, or are too few to tell. Two
    neighbouring ticks of a coarse clock, which counts in steps of `step_us`, are no heaps. Where
    nobody knows that step, it is the smallest that the durations themselves show."""
    ordered = sorted(durations_us)
    least = max(2, ceil(_LEAST_SHARE * len(ordered)))
    if len(ordered) < _LEAST_REPEATS:
        return None
    steps = [after - before for before, after in pairwise(ordered)]
    places = range(least, len(ordered) - least + 1)
    place = max(places, key=lambda at: steps[at - 1])
    gap_us = steps[place - 1]
    fast_us, slow_us = median(ordered[:place]), median(ordered[place:])
    is_apart = slow_us >= _LEAST_RATIO * fast_us and gap_us >= _EMPTY * (slow_us - fast_us)
    if not is_apart:
        return None
    step_us = step_us or min(step for step in steps if step > 0)
    if gap_us < _STEPS * step_us and _is_counted(ordered[place - 1], step_us):
        return None
    return Modes(fast_us, slow_us, (len(ordered) - place) / len(ordered))


def _is_counted(duration_us: float, step_us: float) -> bool:
    """Whether a clock with these steps can have counted a duration. Of steady repeats of two kinds
    all that a session sees of a step may be the gap between them, of which they are no multiples.
    """
    steps = duration_us / step_us
    return abs(steps - round(steps)) <= _OF_A_STEP
