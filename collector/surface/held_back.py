"""How wide an interval must be to hold what it states, by points held back.

Points held back are drawn by chance beforehand, and teach nothing: what the model is off by there,
over what it expects, it is off by anywhere (split conformal prediction). The points that nobody
asks are those of which less is expected to be wrong; of errors over expected ones that makes no
difference on real tables. No shape of the errors is assumed, and a model that is wrong has wide
intervals, not false ones.
"""

from math import ceil, inf

import numpy as np
import numpy.typing as npt

from collector.surface.surrogate import Estimate

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


def misses(found: Estimate, held: Indices, duration_us: Floats) -> Floats:
    """The errors at points held back, which the estimate has not seen, over those expected; these
    are their durations."""
    missed: Floats = np.abs(np.log(duration_us) - found.log_us[held]) / found.error[held]
    return missed


def half_widths(found: Estimate, missed: Floats, level: float) -> Floats:
    """Of every point the half-width of its interval of this level, as a logarithm: the estimate
    times or over its exponential. Errors too few for the level give an interval without end."""
    rank = ceil(level * (len(missed) + 1))
    factor = inf if rank > len(missed) else np.sort(missed)[rank - 1]
    widths: Floats = factor * found.error
    return widths
