"""What gates of a whole curve have in common: how many cases tell anything of one, and how long its
fastest take."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST_CASES = 20  # of next to no work, or of any other part that is judged
_FASTEST = 0.02  # of all cases, so that a few wrong numbers do not set it


def fastest_us(duration_us: Floats) -> float:
    """The time that hardly any case of a curve beats."""
    return float(np.quantile(duration_us, _FASTEST))
