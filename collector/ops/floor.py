"""The least time in which a device can do what a case asks: no measurement is below it.

It is half of what the operator's declared work takes at the device's published peaks, so that no
honest number is refused: declared work may exceed what a launch really does (a table that is read
once for many rows), and clocks may exceed those that peaks are published for. Bytes are taken to
come from a cache, which is faster than memory, up to the size of the largest caches.

It is a function of the case and the stack alone, so that all merges agree. On a cpu, of which no
peaks are published, a worker may know what its own machine reaches, and refuses more by that.
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
from collector.model.stack import Stack, backend_of
from collector.ops.registry import find

# What devices can do at best, as `data/peaks.yaml` describes them: the forecast of a plan and the
# floor of a measurement both start from it.


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """One entry of the table, and where its figures are from. `tflops` is by torch's dtype name;
    the shares are what kernels reach of compute and memory, for forecasts."""

    source: str
    tflops: Mapping[str, float]
    gib_per_s: float
    compute_share: float
    memory_share: float
    launch_us: float
    session_start_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.gib_per_s * GIB


def described_peaks(device: str) -> DevicePeaks | None:
    """The entry of a device; None for one that nobody has described."""
    facts = _table()["devices"].get(device)
    return None if facts is None else DevicePeaks(**facts)


def described_devices() -> tuple[str, ...]:
    """The devices that have an entry."""
    return tuple(_table()["devices"])


def assumed_peaks() -> DevicePeaks:
    """What a forecast takes for a device that nobody has described."""
    return DevicePeaks(**_table()["unknown"])


@cache
def _table() -> dict[str, Any]:
    text = (files("collector") / "data" / "peaks.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)
    return table


# Sixty cycles of the fastest clock: nothing is launched and done in less. Calls of torch on a cpu
# take a few tenths of a microsecond, kernels of NPUs and GPUs a whole one at least (1.06 in
# published profiles): what is less than a tenth there is in another unit.
LEAST_US = 0.01
LEAST_KERNEL_US = 0.1
_MARGIN = 2.0
# Caches: four times as fast as the memory of their device, and none is larger than this.
_CACHE_OVER_MEMORY = 4.0
_CACHE_BYTES = 512 * 2**20
_PACKED = 2.0  # four bits are twice as fast as eight

# A cpu by its threads: a clock that none has, the operations of a cycle with two units for each
# kind of instructions (floats, then anything), and two loads and a store of 64 bytes a cycle.
_CPU_HZ = 6e9
_CPU_FLOPS_A_CYCLE = (("amx_tile", 2048.0, 4096.0), ("avx512f", 256.0, 512.0), ("", 128.0, 256.0))
_CPU_BYTES_A_CYCLE = 192.0
_MOST_THREADS = 4096


@dataclass(frozen=True, slots=True)
class _Ceiling:
    """What a device never exceeds: operations a second on floating-point numbers, on eight bits,
    and on whatever a row does not tell; bytes a second from its caches and from its memory."""

    float_flops_per_s: float
    int8_flops_per_s: float
    other_flops_per_s: float
    cache_bytes_per_s: float
    memory_bytes_per_s: float


# Faster than any device of the coming years: for one that nobody has described.
_ANY_DEVICE = _Ceiling(
    float_flops_per_s=10e15,
    int8_flops_per_s=20e15,
    other_flops_per_s=40e15,
    cache_bytes_per_s=128e12,
    memory_bytes_per_s=32e12,
)


def floor_us(case: Case, stack: Stack | None, peaks: MachinePeaks | None = None) -> float:
    """Microseconds below which no launch of a case can be on a stack's device (None: on any), or on
    the machine of that stack that has these peaks.

    Of an operator that is not declared, or whose declaration refuses the case, nothing is known
    but that it was launched.
    """
    op = find(case.kernel_type)
    if op is None:
        return _least_us(stack)
    try:
        op.check(case, "npu")  # which has every layout that the others have
    except CaseRejected:
        return _least_us(stack)
    work = op.flops(case), op.traffic(case)
    return float(floors_us(*work, flops_per_s(case, stack, peaks), stack, peaks))


def floors_us(
    operations: Any,
    traffic: Any,
    flops_per_s: Any,
    stack: Stack | None,
    peaks: MachinePeaks | None = None,
) -> Any:
    """That of a launch of so many operations and bytes, whose dtypes allow so many operations a
    second, or of each of many."""
    ceiling = _ceiling(stack, peaks)
    memory_s = (traffic - _CACHE_BYTES) / ceiling.memory_bytes_per_s
    moved_s = np.maximum(traffic / ceiling.cache_bytes_per_s, memory_s)
    ideal_s = np.maximum(operations / flops_per_s, moved_s)
    return np.maximum(_least_us(stack), ideal_s * 1e6 / _MARGIN)


def _least_us(stack: Stack | None) -> float:
    is_accelerator = stack is not None and backend_of(stack.device) != "cpu"
    return LEAST_KERNEL_US if is_accelerator else LEAST_US


def flops_per_s(case: Case, stack: Stack | None, peaks: MachinePeaks | None = None) -> float:
    """By the fastest unit that the inputs allow. Where the first is neither floating-point nor
    INT8, it may hold packed numbers; where another is INT8, an operator may compute in it."""
    ceiling = _ceiling(stack, peaks)
    slots = [slot for slot in case.inputs or () if slot.shape is not None]
    dtypes = [slot.known_dtype for slot in slots]
    if not dtypes or any(dtype is None for dtype in dtypes):
        return ceiling.other_flops_per_s
    names = [dtype.torch_name for dtype in dtypes if dtype]
    if dtypes[0] and not dtypes[0].is_floating and names[0] != "int8":
        return ceiling.other_flops_per_s
    return ceiling.int8_flops_per_s if "int8" in names else ceiling.float_flops_per_s


@cache
def _ceiling(stack: Stack | None, peaks: MachinePeaks | None = None) -> _Ceiling:
    if stack is None:
        return _ANY_DEVICE
    if backend_of(stack.device) == "cpu":
        ceiling = _cpu_ceiling(dict(stack.details))
        return ceiling if peaks is None else _machine_ceiling(ceiling, peaks)
    published = described_peaks(stack.device)
    return _ANY_DEVICE if published is None else _device_ceiling(published)


def _device_ceiling(peaks: DevicePeaks) -> _Ceiling:
    """float32 may be computed as fast as 16 bits, in a format of fewer bits."""
    floating = max(tflops for dtype, tflops in peaks.tflops.items() if dtype != "int8") * 1e12
    fastest = max(peaks.tflops.values()) * 1e12
    return _Ceiling(
        float_flops_per_s=floating,
        int8_flops_per_s=fastest,
        other_flops_per_s=_PACKED * fastest,
        cache_bytes_per_s=_CACHE_OVER_MEMORY * peaks.bytes_per_s,
        memory_bytes_per_s=peaks.bytes_per_s,
    )


def _machine_ceiling(ceiling: _Ceiling, peaks: MachinePeaks) -> _Ceiling:
    """Eight bits and what is no number are as fast as any such cpu's: nobody measured them."""
    return replace(
        ceiling,
        float_flops_per_s=max(peaks.float32_flops_per_s, peaks.bfloat16_flops_per_s),
        cache_bytes_per_s=peaks.cache_bytes_per_s,
    )


def _cpu_ceiling(details: dict[str, str]) -> _Ceiling:
    """From the details of a cpu's stack; one that does not say its threads may have any number.
    What is in memory may be one page of zeros, which a cache holds: memory is no bound."""
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
