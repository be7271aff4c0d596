"""After how long a case counts as hung."""

from collector.plan import Limits

# A forecast may be wrong by an order of magnitude before its case is called hung, and a machine
# that others use too is slow in bursts.
_LIMIT_OVER_FORECAST = 30.0
LEAST_LIMIT_S = 60.0


def case_limit_s(predicted_s: float, limits: Limits, least_s: float = LEAST_LIMIT_S) -> float:
    """Scaled from the case's forecast: at least `least_s`, at most what the limits allow."""
    return min(limits.case_s, max(least_s, _LIMIT_OVER_FORECAST * predicted_s))
