"""The duration of a launch on the fake NPU: determined by the call, so that a test knows it."""

import hashlib

from collector.engine.calls import Recorded

_SHORTEST_US, _LONGEST_US = 1.0, 200.0
_STEPS = 199_000  # of a nanosecond


def truth_us(call: Recorded, kernel: str) -> float:
    """Return the microseconds of one launch, with three decimals, from the OP Type and all
    arguments of the call: tensors with their strides and formats, attributes, numbers.

    It ranges over 1 to 200 us without a physical meaning: two calls that differ in anything take
    different times, except for one chance in 199 000, so that a wrong attribution is visible.
    """
    digest = hashlib.sha256(f"{kernel}|{call.text}".encode()).digest()
    step = int.from_bytes(digest[:8], "big") % _STEPS
    return round(_SHORTEST_US + step * (_LONGEST_US - _SHORTEST_US) / _STEPS, 3)
