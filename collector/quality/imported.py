"""The interval of a duration that another tool measured: the noise of its kind.

Nothing is known of its repeats, sessions and devices. The noise is that of other published tables:
71,367 products of a table that a tool collected twice on one machine (aiconfigurator, L40S, SGLang
0.5.10, June 2026). Half of the pairs below 100 us differ by more than 7.3 %, of the others by more
than 3.5 %. The scale of Student's t was fitted to a half of the pairs; its 95 % interval has 95.3 %
of the other half below 100 us, and 97.6 % of the others. No collective was collected twice: its
noise is assumed.
"""

from math import exp

from collector.quality.statistics import student_t_factor

TAIL_DEGREES = 2.0
_SHORT_US = 100.0
_OF_SHORT, _OF_LONG, _OF_COLLECTIVES = 0.061, 0.030, 0.10  # of the logarithm of a duration


def imported_interval(mean_us: float, *, over_ranks: bool) -> tuple[float, float]:
    """Return the 95 % interval of an imported duration, with TAIL_DEGREES degrees of freedom."""
    spread = _OF_SHORT if mean_us < _SHORT_US else _OF_LONG
    reach = exp(student_t_factor(TAIL_DEGREES) * (_OF_COLLECTIVES if over_ranks else spread))
    return mean_us / reach, mean_us * reach
