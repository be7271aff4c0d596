"""How much of the time between a case's launches its device waited for the next one.

A kernel is timed from its own start to its own end, so that gaps make none longer by themselves:
they are recorded, and disturb nothing. They tell how busy the device was, and with it how warm.
"""

from collections.abc import Iterable


def gap_share(launches: Iterable[tuple[int, float]]) -> float | None:
    """The share, from the first start to the last end, in which nothing ran; of launches in order
    of their start (ns) with their durations (us). None of fewer than two."""
    first_ns = end_ns = idle_ns = count = 0
    for start_ns, duration_us in launches:
        if count == 0:
            first_ns = end_ns = start_ns
        idle_ns += max(0, start_ns - end_ns)
        end_ns = max(end_ns, start_ns + round(duration_us * 1000))
        count += 1
    return idle_ns / (end_ns - first_ns) if count > 1 and end_ns > first_ns else None
