"""The highest rates that the processor of one machine reached.

A self-test measures them, and the machine stores them. Durations that are measured on the machine
are checked against them. A merge may run anywhere and does not use them.
"""

from dataclasses import asdict, dataclass, replace
from math import isfinite

from collector.codec.canonical import decode_object, readable_json
from collector.codec.errors import BadInput
from collector.model.stack import Stack

RATES = (
    *("float32_flops_per_s", "bfloat16_flops_per_s"),
    *("cache_bytes_per_s", "memory_bytes_per_s"),
)


@dataclass(frozen=True, slots=True)
class MachinePeaks:
    """The best rates of a CPU with a stack, as torch runs products and copies there. Raises
    BadInput for rates that no machine has."""

    stack: Stack
    float32_flops_per_s: float
    bfloat16_flops_per_s: float
    cache_bytes_per_s: float
    memory_bytes_per_s: float
    at: str  # when the rates were last measured, in UTC

    def __post_init__(self) -> None:
        for name in RATES:
            if not (isfinite(rate := getattr(self, name)) and rate > 0):
                raise BadInput(f"{name}: expected a finite rate above 0, got {rate}")

    def better_of(self, other: "MachinePeaks") -> "MachinePeaks":
        """Return the better of each rate: a disturbance only makes a machine slower."""
        return replace(self, **{n: max(getattr(self, n), getattr(other, n)) for n in RATES})


def peaks_as_json(peaks: MachinePeaks) -> dict[str, object]:
    return {**asdict(peaks), "stack": peaks.stack.as_json()}


def peaks_to_bytes(peaks: MachinePeaks) -> bytes:
    return readable_json(peaks_as_json(peaks))


def peaks_from_bytes(data: bytes, *, key: str) -> MachinePeaks:
    """Return the peak rates. Raises BadInput, which names the key, for other data."""
    return decode_object(MachinePeaks, data, what="the peak rates of a machine", key=key)
