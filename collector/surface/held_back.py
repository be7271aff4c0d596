"""How wide an interval must be to hold what it states, by points held back.

Points held back are drawn by chance from those that nobody will ask, after all others were chosen:
what the model is off by there, it is off by anywhere among them (split conformal prediction). No
shape of the errors is assumed, and a model that is wrong has wide intervals, not false ones.
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
    times or over its exponential. Errors too few for the level give an interval without end. Those
    of the points asked (`unseen`) serve until points are held back; they are of points that were
    chosen for their large errors."""
    rank = ceil(level * (len(missed) + 1))
    factor = inf if rank > len(missed) else np.sort(missed)[rank - 1]
    widths: Floats = factor * found.error
    return widths
