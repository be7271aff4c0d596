"""What a profiler's durations leave out: the time between launches, the steps of its clock, and
what is below its shortest duration (docs/explanation/how-a-measurement-is-made.md)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from collector.quality.statistics import percentile


def gap_share(launches: Iterable[tuple[int, float]]) -> float | None:
    """Return the share of the time, from the first start to the last end, in which nothing ran.
    Launches are in order of their start (ns), with their durations (us). Return None for fewer
    than two launches."""
    first_ns = end_ns = idle_ns = count = 0
    for start_ns, duration_us in launches:
        if count == 0:
            first_ns = end_ns = start_ns
        idle_ns += max(0, start_ns - end_ns)
        end_ns = max(end_ns, start_ns + round(duration_us * 1000))
        count += 1
    return idle_ns / (end_ns - first_ns) if count > 1 and end_ns > first_ns else None


# Step of the clock that counted a profiler's durations
# (docs/explanation/how-a-measurement-is-made.md).

_LEAST_SERIES = 3  # with fewer repeats of a case, equal ones may be chance
_TIED = 0.5  # share of equal repeats at which the steps of a clock are assumed
_ROUNDING_US = 1e-6


def clock_step_us(series: Iterable[Sequence[float]]) -> float:
    """Return the step, from the durations of each case's repeats; 0.0 if none shows, as the
    durations of a fine clock are seldom equal."""
    steps = [step for durations_us in series if (step := _step_us(durations_us))]
    return round(median(steps), 6) if steps else 0.0


def _step_us(durations_us: Sequence[float]) -> float:
    """Return the smallest difference between durations of one case; 0.0 if they show no step."""
    distinct = sorted({round(us, 6) for us in durations_us})
    is_tied = len(distinct) <= (1 - _TIED) * len(durations_us)
    if len(durations_us) < _LEAST_SERIES or not is_tied:
        return 0.0
    apart = (after - before for before, after in pairwise(distinct))
    return min((step for step in apart if step > _ROUNDING_US), default=0.0)


# Shortest duration that a profiler records, its lower bound, and its effect on measurements near it
# (docs/explanation/how-a-measurement-is-made.md).

# From ten times the lower bound on, it is less than a tenth of a duration, which is the difference
# that two consistent runs may have. Below that, all of it counts.
_NEAR = 10.0
_LEAST_LAUNCHES = 10
_LOW = 0.1  # quantile of the launches without work: a disturbance only lengthens a launch
_LEFT = 0.01  # least share of a lower end that remains: a launch takes some time


def profiler_lower_bound_us(idle_us: Sequence[float]) -> float:
    """Return the profiler's lower bound, from the recorded durations of launches without work;
    0.0 if there were too few."""
    if len(idle_us) < _LEAST_LAUNCHES:
        return 0.0
    return round(percentile(sorted(idle_us), _LOW), 6)


def is_near_lower_bound(mean_us: float, lower_bound_us: float) -> bool:
    """Return whether a duration is so near the lower bound that its intervals include it."""
    return mean_us < _NEAR * lower_bound_us


def lowered_us(low_us: float, mean_us: float, lower_bound_us: float) -> float:
    """Return the lower end of a mean's interval, reduced by the profiler's lower bound;
    unchanged if the mean is far above that."""
    if not is_near_lower_bound(mean_us, lower_bound_us) or low_us <= 0:
        return low_us
    return max(low_us - lower_bound_us, _LEFT * low_us)
