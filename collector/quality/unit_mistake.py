"""Whether durations are in another unit than microseconds: all of a curve a thousand times too
long. What is a thousand times too short is below the floor of each case by itself.

A launch costs a device some microseconds, and some case of a curve with next to no work takes
little more. Where none takes less than a millisecond, and none of the others is faster than a
thousandth of what its device can do, nanoseconds were read as microseconds.
"""

from collector.quality.curve import LEAST_CASES, Floats, fastest_us

# Two hundred times what a launch costs a device; the slowest small kernels of NPUs, those that run
# on AI_CPU, take a tenth of it.
LONGEST_LAUNCH_US = 1000.0
_NO_WORK_US = 1.0
# Of the floor, which nothing that shows exceeds; a real curve reaches a tenth of it somewhere.
LEAST_SHARE = 1e-3


def may_be_mistaken(duration_us: Floats) -> bool:
    """Whether durations alone leave it open; asked first, since it is cheap."""
    return len(duration_us) >= LEAST_CASES and fastest_us(duration_us) >= LONGEST_LAUNCH_US


def find_unit_mistake(duration_us: Floats, least_us: Floats) -> str:
    """Why these are no microseconds; empty where they may be. `least_us` is the floor of each case
    on its device: half of what its work takes at the published peaks."""
    small = int((least_us <= _NO_WORK_US).sum())
    if small < LEAST_CASES or not may_be_mistaken(duration_us):
        return ""
    best = float((least_us / duration_us).max())
    if best >= LEAST_SHARE:
        return ""
    return (
        f"another unit than us: none of {small} cases with next to no work takes less than "
        f"{fastest_us(duration_us):.4g} us, and the best of {len(duration_us)} reaches "
        f"{2 * best:.2%} of what its device can do"
    )
