"""What a number must satisfy before it may be shown. A refused one is kept, with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from collector.measurement import Timing

SPREAD_LIMIT = 0.10
FEW_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """`refused` says why a measurement must not be shown; empty where it may be."""

    refused: str = ""
    warnings: tuple[str, ...] = ()


def are_positive(durations_us: Sequence[float]) -> bool:
    """Whether every duration is a finite number above zero: what statistics can be made of."""
    return all(isfinite(us) and us > 0 for us in durations_us)


def judge(
    timing: Timing, accepted: int, *, floor_us: float | None = None, spread: float = SPREAD_LIMIT
) -> Verdict:
    """Refuse a mean below the physical floor, where one is known; warn of numbers that wobble."""
    if floor_us is not None and timing.mean_us < floor_us:
        return Verdict(f"{timing.mean_us:.3f} us is below the physical floor of {floor_us:.3f} us")
    warnings = []
    if timing.spread > spread:
        warnings.append(f"spread {timing.spread:.0%} is above {spread:.0%}")
    if accepted < FEW_REPEATS:
        warnings.append(f"{accepted} accepted repeats: the interval says little")
    return Verdict(warnings=tuple(warnings))
