"""Physical durations of a fake NPU: FAKE_CANN_TIMES=physical.

A launch takes what its arithmetic or its bytes take at four fifths of the peaks of the device that
the fake represents (an Atlas 800 A2, 294.9 TFLOPS of BF16 and 1.6 TiB/s), and two microseconds.
Data in the cache is read three times as fast, until a large integer sum has flushed it. The
duration of attention grows with every key of its lengths. Nothing else is modelled.
"""

import hashlib
import re
from collections.abc import Collection
from math import prod

from collector.engine.calls import Recorded

TIMES = "FAKE_CANN_TIMES"
PHYSICAL = "physical"
# Behaviour that a test may disable: `cache` (a flush changes nothing), `lengths`.
IGNORED = ("cache", "lengths")

_FLOPS_PER_S, _BYTES_PER_S = 0.8 * 294.9e12, 0.8 * 1638.4 * 2**30
_CACHE_BYTES, _CACHE_FASTER = 192 * 2**20, 3.0
_LEAST_FLUSH_BYTES = 2**20
_LAUNCH_US, _KEY_US = 2.0, 0.002
_BITS = {"DOUBLE": 64, "INT64": 64, "UINT64": 64, "FLOAT": 32, "INT32": 32, "UINT32": 32}
_INTS = re.compile(r"ints\(([\d,]+)\)")


class PhysicalTimes:
    """The durations of one device's launches, in their order: it remembers flushes."""

    def __init__(self, ignored: Collection[str] = ()):
        self._ignored = frozenset(ignored)
        self._is_flushed = False

    def of_us(self, call: Recorded, kernel: str) -> float:
        """Return the microseconds of the next launch, with three decimals."""
        moved = sum(_bytes(t.dtype, t.shape) for t in call.tensors)
        if _is_flush(call, moved):
            self._is_flushed = True
        elif kernel != "Neg":  # a mark
            is_cold, self._is_flushed = self._is_flushed, False
            return self._of(call, kernel, moved, is_cold=is_cold and "cache" not in self._ignored)
        return _LAUNCH_US

    def _of(self, call: Recorded, kernel: str, moved: int, *, is_cold: bool) -> float:
        if "Attention" in kernel:
            keys = 0 if "lengths" in self._ignored else _keys(call)
            return round(_LAUNCH_US + _KEY_US * keys + _stray_us(call), 3)
        is_cached = moved < _CACHE_BYTES and not is_cold
        moving_s = moved / (_BYTES_PER_S * (_CACHE_FASTER if is_cached else 1.0))
        us = max(moving_s, _flops(call, kernel) / _FLOPS_PER_S) * 1e6
        return round(_LAUNCH_US + us + _stray_us(call), 3)


def _is_flush(call: Recorded, moved: int) -> bool:
    """Return whether it is a sum of integers as large as a cache, of any size that torch_npu
    assumes."""
    return "Adds" in call.name and moved > _LEAST_FLUSH_BYTES and call.tensors[0].dtype == "INT32"


def _flops(call: Recorded, kernel: str) -> int:
    shapes = [t.shape for t in call.tensors]
    if "MatMul" not in kernel or len(shapes) < 3 or len(shapes[0]) < 2:
        return 0
    return 2 * prod(shapes[-1]) * shapes[0][-1]


def _keys(call: Recorded) -> int:
    lists = (_INTS.fullmatch(argument) for argument in call.arguments)
    return sum(sum(map(int, found[1].split(","))) for found in lists if found)


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return prod(shape) * _BITS.get(dtype, 16) // 8


def _stray_us(call: Recorded) -> float:
    """Return up to a hundredth of a microsecond that depends on the call alone: no two calls take
    exactly the same."""
    return int.from_bytes(hashlib.sha256(call.text.encode()).digest()[:2], "big") % 10 / 1000
