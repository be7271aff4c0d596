"""How long a launch takes on the fake NPU: decided by the call, so that a test can know it."""

import hashlib

from collector.recording.calls import Recorded

_SHORTEST_US, _LONGEST_US = 1.0, 200.0
_STEPS = 199_000  # of a nanosecond


def truth_us(call: Recorded, kernel: str) -> float:
    """Microseconds of one launch, with three decimals, from the OP Type and everything that the
    call was given: tensors with their strides and formats, attributes, numbers.

    It spreads over 1 to 200 us and means nothing: two calls that differ in anything take, but for
    one chance in 199 000, different times, so that a wrong attribution shows.
    """
    digest = hashlib.sha256(f"{kernel}|{call.text}".encode()).digest()
    step = int.from_bytes(digest[:8], "big") % _STEPS
    return round(_SHORTEST_US + step * (_LONGEST_US - _SHORTEST_US) / _STEPS, 3)
