"""How many more sessions would narrow the interval of a measured case.

The variance of a mean over n sessions on different devices is its variance in one session, divided
by n; each further session adds one degree of freedom to Student's t of its interval. So the
half-width after m more sessions is

    t(degrees + m) / t(degrees) * sqrt(n / (n + m))

times the present one. On the same device, the variance between devices remains whatever m is.
"""

from math import log, sqrt

from collector.quality.statistics import student_t_factor

_MOST = 1000


def sessions_to_halve(
    mean_us: float,
    high_us: float,
    degrees: float,
    sessions: int,
    *,
    device_spread: float = 0.0,
) -> int | None:
    """Return how many more sessions halve the interval of a mean, or None if 1,000 do not.

    `device_spread` is the relative standard deviation between devices if the further sessions run
    on the same device, and 0 if each runs on another one."""
    reach = log(high_us / mean_us) if high_us > mean_us > 0 else 0.0
    if not reach or degrees <= 0 or sessions < 1:
        return None
    variance = (reach / student_t_factor(degrees)) ** 2
    of_device = min(device_spread**2, variance)
    of_sessions = variance - of_device
    for more in range(1, _MOST + 1):
        left = of_device + of_sessions * sessions / (sessions + more)
        if student_t_factor(degrees + more) * sqrt(left) <= reach / 2:
            return more
    return None
