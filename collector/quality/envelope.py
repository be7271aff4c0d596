"""Which durations lie above those of larger cases.

Tiles, waves and alignment make a sawtooth, but a case takes no longer than twice what one takes
that is at least as large in every dimension: of published GEMM tables at most seven in a thousand
do, of those that were timed at a host one in eight. It says that either number is odd, not which,
so it is a warning.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SAWTOOTH = 2.0
_LAUNCH_US = 5.0  # by less even equal cases differ, where launches are all of their time
_AT_ONCE = 200  # rows compared with all others, so that memory stays small


def larger_and_faster(sizes: Floats, duration_us: Floats) -> npt.NDArray[np.int64]:
    """For each case the fastest one that is at least as large in every dimension, where it takes
    less than half, and a launch less; -1 where there is none. `sizes` has a row for each case and a
    column for each dimension."""
    found = np.full(len(duration_us), -1, np.int64)
    for start in range(0, len(duration_us), _AT_ONCE):
        own = slice(start, start + _AT_ONCE)
        is_larger = np.ones((len(duration_us[own]), len(duration_us)), np.bool_)
        for dimension in sizes.T:
            is_larger &= dimension[None, :] >= dimension[own, None]
        others_us = np.where(is_larger, duration_us[None, :], np.inf)
        fastest = np.argmin(others_us, axis=1)
        least_us = others_us[np.arange(len(fastest)), fastest]
        bar_us = np.maximum(SAWTOOTH * least_us, least_us + _LAUNCH_US)
        found[own] = np.where(duration_us[own] > bar_us, fastest, -1)
    return found
