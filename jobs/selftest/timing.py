"""Checks that durations are physically possible, and depend on the right quantities."""

from math import inf
from pathlib import Path
from statistics import median

from collector.codec.text import GIB, percent
from collector.model.measurement import Measurement
from collector.model.peaks import MachinePeaks
from collector.model.record import CaseRecord
from collector.ops.floor import described_peaks
from collector.ops.references import (
    REFERENCES,
    addition,
    copying_kernel,
    decode_attention,
    product_kernel,
    reference_record,
)
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.profiles.kernel_details import read_profile
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Session, SessionRequest, unmeasured
from jobs.selftest.peaks import own_peaks

_LEAST, _MOST = 0.5, 1.05  # of a published peak: clocks may exceed the nominal ones
# Sizes of a product limited by arithmetic, and of a copy: half a GiB is read and written back.
_LARGE, _LARGE_OF_CPU = (4096, 16384), (1024, 4096)
_CACHED = tuple(range(2048, 8193, 1024))  # rows of 512 float32 numbers: 4 to 16 MiB
_COLDER = 1.02
_KEYS = (128, 1024, 8192)
# Largest relative difference between medians of two sessions: of the median case, and of any case,
# which may have a mode of its own. A CPU also runs other processes.
_ALIKE = {"npu": (0.05, 0.2), "cuda": (0.05, 0.2), "cpu": (0.5, inf)}
_FIX = "check whether clocks are lowered or the device is shared: npu-smi info, nvidia-smi"


def check_physics(bench: Bench) -> Check:
    """Compare a large product and a large copy with the peaks of the device."""
    records = _large(bench.backend)
    session = bench.session(SessionRequest("physics", records))
    fault = unmeasured(session, len(records))  # a duration below the lower bound is `implausible`
    if fault:
        return Check("physics", False, fault, _FIX)
    product_us, copy_us = (m.timing.mean_us for m in session.results if m.timing)
    if bench.backend == "cpu":
        return Check("physics", True, words_on_own_peaks(product_us, copy_us, own_peaks(bench)))
    peaks = described_peaks(bench.stack.device)
    if peaks is None:
        words = f"nothing below the lower bound; no peaks of {bench.stack.device} are published"
        return Check("physics", True, words)
    n, _ = _LARGE
    reached = {
        "arithmetic": 2 * n**3 / (product_us * 1e-6) / (peaks.tflops["bfloat16"] * 1e12),
        "bandwidth": GIB / (copy_us * 1e-6) / peaks.bytes_per_s,
    }
    words = ", ".join(f"{percent(share, 0)} of its {name}" for name, share in reached.items())
    is_well = all(_LEAST <= share <= _MOST for share in reached.values())
    return Check("physics", is_well, f"{bench.stack.device}: {words}", _FIX)


def words_on_own_peaks(product_us: float, copy_us: float, peaks: MachinePeaks | None) -> str:
    """Return how near the large cases of a CPU came to its measured peaks. This is no failure: a
    CPU also runs other processes, and a copy may stay in its caches."""
    if peaks is None:
        return (
            "nothing below the lower bound; not compared with the peaks, which are not measured: "
            "another process used the cores"
        )
    n, m = _LARGE_OF_CPU
    arithmetic = 2 * n**3 / (product_us * 1e-6) / peaks.float32_flops_per_s
    bandwidth = 2 * 4 * m**2 / (copy_us * 1e-6) / peaks.memory_bytes_per_s
    return (
        f"nothing below the lower bound; {percent(arithmetic, 0)} of the measured peak of "
        f"arithmetic, {percent(bandwidth, 0)} of that of memory"
    )


def check_cache_effect(bench: Bench) -> Check:
    """Check that launches with a warm cache are faster than those with a flushed one."""
    records = tuple(addition(rows, 512) for rows in _CACHED)
    warm = bench.session(SessionRequest("warm", records))
    cold = bench.session(SessionRequest("cold", records, cache="cold"))
    if fault := unmeasured(warm, len(records)) or unmeasured(cold, len(records)):
        return Check("cache", False, fault, _FIX)
    ratio = median(c / w for c, w in zip(_medians(cold), _medians(warm), strict=True))
    found = f"cold launches take {ratio:.2f} times as long as warm ones"
    fix = "`cache: cold` would not be cold: is the last-level cache larger than torch reports?"
    return Check("cache", ratio >= _COLDER, found, fix)


def check_lengths(bench: Bench) -> Check:
    """Check that a decode step of attention takes longer with more keys, at the same shapes."""
    records = tuple(decode_attention(keys) for keys in _KEYS)
    session = bench.session(SessionRequest("lengths", records))
    if fault := unmeasured(session, len(records)):
        return Check("lengths", False, fault, _FIX)
    # Use the fastest launch of each: disturbances only lengthen a launch.
    times = [m.timing.min_us for m in session.results if m.timing]
    words = ", ".join(f"{us:.1f} us at {n:,} keys" for n, us in zip(_KEYS, times, strict=True))
    is_rising = all(a < b for a, b in zip(times, times[1:], strict=False))
    fix = "the lengths do not reach the kernel: rows of attention would be of one length"
    return Check("lengths", is_rising, words, fix)


def check_sessions(bench: Bench) -> Check:
    """Compare the same twelve cases in two sessions."""
    records = _references(bench.backend)
    first, second = (bench.session(SessionRequest(f"twice-{n}", records)) for n in (1, 2))
    if fault := unmeasured(first, len(records)) or unmeasured(second, len(records)):
        return Check("sessions", False, fault, _FIX)
    apart = {
        record.case.describe(): abs(b / a - 1)
        for record, a, b in zip(records, _medians(first), _medians(second), strict=True)
    }
    worst = max(apart, key=lambda case: apart[case])
    most, worst_allowed = _ALIKE[bench.backend]
    found = f"{percent(median(apart.values()))} apart, at most {percent(apart[worst])}: {worst}"
    is_well = median(apart.values()) <= most and apart[worst] <= worst_allowed
    return Check("sessions", is_well, found, _FIX)


def _large(backend: str) -> tuple[CaseRecord, ...]:
    dtype = "FLOAT" if backend == "cpu" else "DT_BF16"
    n, m = _LARGE_OF_CPU if backend == "cpu" else _LARGE
    return product_kernel(n, dtype), copying_kernel(m, m, dtype)


def _references(backend: str) -> tuple[CaseRecord, ...]:
    """Return the reference cases; those of a CPU are a quarter as wide, and of float32."""
    if backend != "cpu":
        return tuple(reference_record(*shapes) for shapes in REFERENCES)
    return tuple(
        reference_record(kernel, _narrow(inputs), _narrow(outputs), "FLOAT")
        for kernel, inputs, outputs in REFERENCES
    )


def _narrow(shapes: str) -> str:
    slots = (slot.split(",") for slot in shapes.split(";"))
    return ";".join(",".join(str(max(1, int(size) // 4)) for size in slot) for slot in slots)


def _medians(session: Session) -> list[float]:
    return [_median(m) for m in session.results]


def _median(measurement: Measurement) -> float:
    assert measurement.timing is not None  # all of them are good
    return measurement.timing.median_us


# Rows of the user's own profile, measured here: their durations must be similar.

_ROWS = 20
_APART = 2.0  # for the median ratio, in either direction; a cache or a clock has less effect


def check_profile(bench: Bench, profile: Path | None) -> Check:
    """Compare the twenty rows with the most time in a profile with their durations here."""
    if profile is None:
        words = "no profile was given: --profile DIR"
        return Check("profile", True, words, skipped=True)
    records = heaviest(profile, bench.backend)
    if not records:
        words = f"{profile}: none of its rows can be measured on {bench.backend}"
        return Check("profile", True, words, skipped=True)
    session = bench.session(SessionRequest("profile", tuple(records)))
    there = {r.case_id: r.profile.mean_us for r in records if r.profile is not None}
    ratios = sorted(
        (m.timing.mean_us / there[m.case_id], m.kernel_type)
        for m in session.results
        if m.timing is not None
    )
    fix = (
        "was the profile taken on this device and release? If so: report an issue, with the report"
    )
    if not ratios:
        return Check("profile", False, f"none of {len(records)} rows was measured", fix)
    middle = median(ratio for ratio, _ in ratios)
    (low, lowest), (high, highest) = ratios[0], ratios[-1]
    words = (
        f"{len(ratios)} rows take {middle:.2f} times what the profile records, from {low:.2f} "
        f"({lowest}) to {high:.2f} ({highest})"
    )
    return Check("profile", 1 / _APART <= middle <= _APART, words, fix)


def heaviest(profile: Path, backend: str) -> list[CaseRecord]:
    """Return the measurable rows of a profile with the most time, longest total time first."""
    timed = [r for r in read_profile([profile]).records if r.profile is not None]
    timed.sort(key=lambda r: r.profile.total_us if r.profile else 0.0, reverse=True)
    return [r for r in timed if refusal(r.case, find_operator, backend) is None][:_ROWS]
