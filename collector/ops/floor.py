"""The lower bound of a duration: no measurement of a case can be below it.

The bound is half of the time that the operator's declared work takes at the device's published
peaks. Half, so that no correct measurement is refused: the declared work may exceed the work of a
launch (a table that is read once for many rows), and clocks may exceed the clocks of the published
peaks. Bytes up to the size of the largest caches count as read from a cache, which is faster than
memory.

The bound depends on the case and the stack only, so that all merges agree. For CPUs no peaks are
published. A worker may know the peaks of its own machine, which give a tighter bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import numpy as np
import yaml

from collector.codec.errors import CaseRejected
from collector.codec.text import GIB
from collector.model.case import Case
from collector.model.peaks import MachinePeaks
from collector.model.stack import HOST, Stack, backend_of
from collector.ops.registry import find_operator

# Peaks of devices from `data/peaks.yaml`. The forecast of a plan and the lower bound of a
# measurement both use them.


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """One entry of the table, with the source of its figures.

    `tflops` is by torch's dtype name. The shares are the fractions of peak compute and memory
    bandwidth that kernels reach; forecasts use them."""

    source: str
    tflops: Mapping[str, float]
    gib_per_s: float
    compute_share: float
    memory_share: float
    launch_us: float
    session_start_s: float
    gang_start_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.gib_per_s * GIB


def described_peaks(device: str) -> DevicePeaks | None:
    """Return the entry of a device; None for a device without an entry."""
    facts = _table()["devices"].get(device)
    return None if facts is None else DevicePeaks(**facts)


def described_devices() -> tuple[str, ...]:
    """Return the devices that have an entry."""
    return tuple(_table()["devices"])


def assumed_peaks() -> DevicePeaks:
    """Return the peaks that a forecast assumes for a device without an entry."""
    return DevicePeaks(**_table()["unknown"])


@dataclass(frozen=True, slots=True)
class CpuRates:
    """What forecasts assume of any CPU besides its details, with the source of the figures.

    `clock_mhz` is used for a CPU that reports none. A thread moves `thread_gb_per_s`, all together
    at most `gb_per_s`. `case_ms` is the host's time for a case, `profile_us` the profiler's for a
    launch."""

    source: str
    compute_share: float
    clock_mhz: float
    thread_gb_per_s: float
    gb_per_s: float
    launch_us: float
    profile_us: float
    case_ms: float
    session_start_s: float
    gang_start_s: float


def cpu_rates() -> CpuRates:
    """Return the entry of CPUs."""
    return CpuRates(**_table()["cpu"])


@cache
def _table() -> dict[str, Any]:
    text = (files("collector") / "data" / "peaks.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


# 0.01 us is sixty cycles of the fastest clock: no launch is shorter. torch calls on a CPU take a
# few tenths of a microsecond. Kernels of NPUs and GPUs take at least one microsecond (1.06 in
# published profiles): a duration below 0.1 us is in another unit.
MIN_US = 0.01
MIN_KERNEL_US = 0.1
_MARGIN = 2.0
# A cache is four times as fast as the memory of its device, and not larger than this.
_CACHE_OVER_MEMORY = 4.0
_CACHE_BYTES = 512 * 2**20
_PACKED = 2.0  # four bits are twice as fast as eight
_BYTE = 8

# Peaks of a CPU, per thread: a clock above that of any CPU; operations per cycle with two units for
# each instruction set (floating-point numbers, then other dtypes); two loads and one store of 64
# bytes per cycle.
_CPU_HZ = 6e9
_CPU_FLOPS_A_CYCLE = (("amx_tile", 2048.0, 4096.0), ("avx512f", 256.0, 512.0), ("", 128.0, 256.0))
_CPU_BYTES_A_CYCLE = 192.0
_MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class _Ceiling:
    """Rates that a device never exceeds.

    Operations per second for floating-point numbers, for eight-bit numbers, and for numbers of a
    dtype that a row does not name; bytes per second from caches and from memory."""

    float_flops_per_s: float
    int8_flops_per_s: float
    other_flops_per_s: float
    cache_bytes_per_s: float
    memory_bytes_per_s: float


# For a device without an entry: faster than any device of the coming years.
_ANY_DEVICE = _Ceiling(
    float_flops_per_s=10e15,
    int8_flops_per_s=20e15,
    other_flops_per_s=40e15,
    cache_bytes_per_s=128e12,
    memory_bytes_per_s=32e12,
)


def lower_bound_us(case: Case, stack: Stack | None, peaks: MachinePeaks | None = None) -> float:
    """Return the lower bound of a launch of a case on a stack's device, in microseconds.

    A stack of None means any device. `peaks` are those of the machine, if they are known. If no
    operator is declared for the case, or the operator refuses it, the bound is that of any launch.
    """
    op = find_operator(case.kernel_type)
    if op is None:
        return least_us(stack)
    try:
        op.check(case, "npu")  # the NPU has every layout that other backends have
    except CaseRejected:
        return least_us(stack)
    work = op.flops(case), op.traffic(case)
    return float(lower_bounds_us(*work, flops_per_s(case, stack, peaks), stack, peaks))


def lower_bounds_us(
    operations: Any,
    traffic: Any,
    flops_per_s: Any,
    stack: Stack | None,
    peaks: MachinePeaks | None = None,
) -> Any:
    """Return the lower bound of a launch with this many operations and bytes, in microseconds.

    `flops_per_s` is the rate that the dtypes allow. Arrays give one bound per element."""
    ceiling = _ceiling(stack, peaks)
    memory_s = (traffic - _CACHE_BYTES) / ceiling.memory_bytes_per_s
    moved_s = np.maximum(traffic / ceiling.cache_bytes_per_s, memory_s)
    ideal_s = np.maximum(operations / flops_per_s, moved_s)
    return np.maximum(least_us(stack), ideal_s * 1e6 / _MARGIN)


def least_us(stack: Stack | None) -> float:
    """Return the least time of any launch on a stack's device, in microseconds."""
    is_accelerator = stack is not None and backend_of(stack.device) not in ("cpu", HOST)
    return MIN_KERNEL_US if is_accelerator else MIN_US


def flops_per_s(case: Case, stack: Stack | None, peaks: MachinePeaks | None = None) -> float:
    """Return the rate of the fastest unit that the dtypes of the inputs allow.

    If the first input is neither floating-point nor INT8, it may hold packed numbers. If any input
    is INT8 or a floating-point dtype of eight or four bits, the operator may compute in it."""
    ceiling = _ceiling(stack, peaks)
    slots = [slot for slot in case.inputs or () if slot.shape is not None]
    dtypes = [slot.known_dtype for slot in slots]
    if not dtypes or any(dtype is None for dtype in dtypes):
        return ceiling.other_flops_per_s
    known = [dtype for dtype in dtypes if dtype]
    if not known[0].is_floating and known[0].torch_name != "int8":
        return ceiling.other_flops_per_s
    bits = [one.item_bits for one in known if one.is_floating or one.torch_name == "int8"]
    if min(bits) < _BYTE:
        return ceiling.other_flops_per_s
    return ceiling.int8_flops_per_s if min(bits) == _BYTE else ceiling.float_flops_per_s


@cache
def _ceiling(stack: Stack | None, peaks: MachinePeaks | None = None) -> _Ceiling:
    if stack is None:
        return _ANY_DEVICE
    if backend_of(stack.device) == "cpu":
        ceiling = _cpu_ceiling(dict(stack.details))
        if peaks is None:
            return ceiling
        # Integer rates stay those of any CPU of this kind: they were not measured.
        floating = max(peaks.float32_flops_per_s, peaks.bfloat16_flops_per_s)
        of_cache = peaks.cache_bytes_per_s
        return replace(ceiling, float_flops_per_s=floating, cache_bytes_per_s=of_cache)
    published = described_peaks(stack.device)
    return _ANY_DEVICE if published is None else _device_ceiling(published)


def _device_ceiling(peaks: DevicePeaks) -> _Ceiling:
    """Return the ceiling of a described device.

    float32 counts as fast as 16 bits, because a device may compute it in a format of fewer bits."""
    floating = max(tflops for dtype, tflops in peaks.tflops.items() if dtype != "int8") * 1e12
    fastest = max(peaks.tflops.values()) * 1e12
    return _Ceiling(
        float_flops_per_s=floating,
        int8_flops_per_s=fastest,
        other_flops_per_s=_PACKED * fastest,
        cache_bytes_per_s=_CACHE_OVER_MEMORY * peaks.bytes_per_s,
        memory_bytes_per_s=peaks.bytes_per_s,
    )


def _cpu_ceiling(details: dict[str, str]) -> _Ceiling:
    """Return the ceiling of a CPU from the details of its stack.

    Without a number of threads the CPU may have any number. Memory gives no bound: data in memory
    may be one page of zeros, which stays in a cache."""
    text = details.get("threads", "")
    threads = int(text) if text.isdecimal() and len(text) < 6 else 0
    flags = {*details.get("flags", "").split(), ""}
    _, floating, other = next(entry for entry in _CPU_FLOPS_A_CYCLE if entry[0] in flags)
    cycles_per_s = (threads or _MOST_THREADS) * _CPU_HZ
    return _Ceiling(
        float_flops_per_s=cycles_per_s * floating,
        int8_flops_per_s=cycles_per_s * other,
        other_flops_per_s=cycles_per_s * other,
        cache_bytes_per_s=cycles_per_s * _CPU_BYTES_A_CYCLE,
        memory_bytes_per_s=inf,
    )
