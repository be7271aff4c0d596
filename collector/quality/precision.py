"""How many more sessions would narrow the interval of a mean.

The variance of a mean over n sessions on different devices is its variance in one session, divided
by n; each further session adds one degree of freedom to Student's t of its interval. So the
half-width after m more sessions is

    t(degrees + m) / t(degrees) * sqrt(n / (n + m))

times the present one. On the same device, the variance between devices remains whatever m is.
"""

from math import sqrt

from collector.quality.statistics import student_t_factor

_MOST = 1000


def sessions_to_narrow(
    reach: float,
    degrees: float,
    sessions: int,
    *,
    to: float,
    device_spread: float = 0.0,
) -> int | None:
    """Return how many more sessions narrow the interval of a mean to a half-width, or None if 1,000
    do not.

    `reach` is its half-width and `to` the requested one, as the logarithm of a ratio.
    `device_spread` is the relative standard deviation between devices if the further sessions run
    on the same device, and 0 if each runs on another one."""
    if reach <= 0 or degrees <= 0 or sessions < 1:
        return None
    variance = (reach / student_t_factor(degrees)) ** 2
    of_device = min(device_spread**2, variance)
    of_sessions = variance - of_device
    for more in range(1, _MOST + 1):
        left = of_device + of_sessions * sessions / (sessions + more)
        if student_t_factor(degrees + more) * sqrt(left) <= to:
            return more
    return None
