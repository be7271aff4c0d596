"""Forecast of the duration of a case, for equal shards and a plan without surprises.

The forecast is the last measurement if there is one, otherwise the roofline: the operator's FLOPs
and bytes over the device's peaks. It is meant to be right within a small factor and to err upwards.
It is never written as a measurement.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum, inf
from statistics import linear_regression, median_low

from collector.codec.numbers import parse_number
from collector.model import plan
from collector.model.case import Case
from collector.model.manifest import Usage, total_usage
from collector.model.plan import MeasureSettings
from collector.model.stack import Stack, backend_of
from collector.ops.floor import DevicePeaks, assumed_peaks, cpu_rates, described_peaks
from collector.ops.references import canary_records
from collector.ops.refusals import FindOperator
from collector.ops.spec import OpSpec
from collector.ranks.collective import Collective
from collector.ranks.experts import ExpertCall
from collector.ranks.gangs import RoutedCall

CASE_OVERHEAD_S = 0.005
# Cost of a case that needs no device: only a row of the part.
REFUSED_CASE_S = 0.001
# Bytes written before each repeat if the cache must be cold; no known last-level cache is larger.
FLUSH_BYTES = 256 * 2**20
# Inputs are written once, into memory that the system provides page by page.
_PASSES_TO_FILL = 2
# Costs of a collective: its messages use this share of the memory bandwidth on the links of a
# group, all ranks start each call together, and a case creates its tensors on every rank.
_LINK_SHARE = 0.02
_BEGIN_TOGETHER_S = 1e-3
_COLLECTIVE_S = 0.1
_MICRO = 1e-6

# float32 operations of one thread in one cycle, fused multiply-adds counted twice, with one unit.
_FLOPS_PER_CYCLE = (("avx512f", 32), ("avx2", 16), ("asimd", 8), ("", 4))
# Speed-up of a dtype if the processor has arithmetic for it; otherwise the reference computes it in
# float32.
_NATIVE = {
    "bfloat16": (("amx_bf16", 8), ("avx512_bf16", 2), ("bf16", 2)),
    "float16": (("amx_fp16", 8), ("avx512_fp16", 2), ("asimdhp", 2)),
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """The rates that a device sustains.

    `flops_per_s` is keyed by torch's dtype name; float32 is used for other dtypes.
    `fill_bytes_per_s` is the rate at which inputs are created. `gang_start_s` is the start of the
    ranks of a gang, which import torch at the same time and create their groups. `case_s` is the
    host's time for a case, `export_s` the profiler's for a launch, mostly after the session."""

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    launch_s: float
    fill_bytes_per_s: float
    session_start_s: float
    gang_start_s: float
    case_s: float = CASE_OVERHEAD_S
    export_s: float = 0.0

    def flops_of(self, dtype: str) -> float:
        return self.flops_per_s.get(dtype, self.flops_per_s["float32"])


@dataclass(frozen=True, slots=True)
class Prediction:
    """The duration of one launch, and the total cost of the case in its session."""

    launch_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class SessionCost:
    """The overhead of a session besides its cases: its start, and its canaries if it is long. A
    session has at most `most_cases`, whose launches msprof can record together."""

    start_s: float
    canaries_s: float = 0.0
    most_cases: float = inf
    gang_start_s: float = 0.0

    @property
    def of_gangs(self) -> "SessionCost":
        """Return the overhead of a gang's session. Ranks have no canaries."""
        return SessionCost(self.gang_start_s)

    def of_sessions(self, work_s: float, session_s: float, cases: int = 0) -> float:
        """Return the overhead of all sessions of a shard whose cases take `work_s` by forecast."""
        count = max(1, ceil(work_s / session_s))
        full, rest_s = divmod(work_s, session_s)
        long = full * (session_s >= plan.CANARIES_FROM_S) + (rest_s >= plan.CANARIES_FROM_S)
        if (least := ceil(cases / self.most_cases)) > count:
            count, long = least, least * (work_s / least >= plan.CANARIES_FROM_S)
        return self.start_s * count + self.canaries_s * long


def peaks_of(stack: Stack) -> Peaks:
    """Return the peaks of a stack's device: described, derived from a CPU's facts, or assumed."""
    if backend_of(stack.device) == "cpu":
        return _cpu_peaks(dict(stack.details))
    return _accelerator_peaks(described_peaks(stack.device) or assumed_peaks())


def with_measured_rates(peaks: Peaks, cases: Iterable[tuple[Case, OpSpec, float]]) -> Peaks:
    """Return the peaks, raised to the rates that measured cases reached: a device that has done a
    product in 0.6 s takes no 2 s for it. Cases have their durations in microseconds. Bytes count if
    no cache holds them, and the shortest launch bounds the cost of a launch.

    A dtype without a measured product is as much faster as the others are."""
    flops, bytes_per_s, launch_s = dict[str, float](), peaks.bytes_per_s, peaks.launch_s
    for case, op, duration_us in cases:
        duration_s, traffic = duration_us * _MICRO, op.traffic(case)
        dtype = _compute_dtype(case)
        flops[dtype] = max(flops.get(dtype, 0.0), op.flops(case) / duration_s)
        if traffic > FLUSH_BYTES:
            bytes_per_s = max(bytes_per_s, traffic / duration_s)
        launch_s = min(launch_s, duration_s)
    faster = max((rate / peaks.flops_of(dtype) for dtype, rate in flops.items()), default=1.0)
    raised = {dtype: rate * max(1.0, faster) for dtype, rate in peaks.flops_per_s.items()}
    return replace(peaks, flops_per_s=raised, bytes_per_s=bytes_per_s, launch_s=launch_s)


def predict(
    case: Case,
    op: OpSpec,
    peaks: Peaks,
    measure: MeasureSettings,
    last_us: float | None,
    before: Sequence[tuple[Case, OpSpec]] = (),
) -> Prediction:
    """Return the forecast of a case that its operator accepts.

    `last_us` is the last measured duration; `before` are the launches that run before each launch
    of the case."""
    launch_s = last_us * _MICRO if last_us else _roofline_s(case, op, peaks)
    launch_s = max(launch_s, _MICRO)
    before_s = fsum(_roofline_s(one, its, peaks) for one, its in before)
    between_s = before_s + (FLUSH_BYTES / peaks.bytes_per_s if measure.cache == "cold" else 0.0)
    each_s = launch_s + between_s
    launches = sum(measure.before_repeats(each_s)) + measure.repeats_of(each_s)
    made = [case, *(one for one, _ in before)]
    made_bytes = sum(slot.size_bytes for one in made for slot in one.inputs or ())
    fill_s = made_bytes / peaks.fill_bytes_per_s
    once_s = launches * (each_s + peaks.export_s) + fill_s + peaks.case_s
    return Prediction(launch_s, once_s * len(measure.aic_metrics))


def session_cost(
    backend: str, find: FindOperator, peaks: Peaks, measure: MeasureSettings
) -> SessionCost:
    """Return the overhead of a session besides its cases."""
    once = replace(measure, repeat_count=plan.CANARY_REPEATS, aic_metrics=measure.aic_metrics[:1])
    known = [(record.case, find(record.kernel_type)) for record in canary_records(backend)]
    place_s = fsum(predict(case, op, peaks, once, None).total_s for case, op in known if op)
    most_cases = plan.MOST_LAUNCHES // measure.most_launches() if backend == "npu" else inf
    start_s = peaks.session_start_s * len(measure.aic_metrics)  # each group has a pass of its own
    canaries_s = len(plan.CANARY_PLACES) * place_s
    return SessionCost(start_s, canaries_s, max(1, most_cases), peaks.gang_start_s)


def predict_collective(
    one: Collective, peaks: Peaks, measure: MeasureSettings, last_us: float | None
) -> Prediction:
    """Return the forecast of a collective: a ring's bytes over links, and a launch per step."""
    steps_s = one.group_size * peaks.launch_s
    launch_s = (
        last_us * _MICRO if last_us else steps_s + one.bus_bytes / (peaks.bytes_per_s * _LINK_SHARE)
    )
    return _of_ranks(launch_s, measure, one.input_bytes, peaks)


def predict_routed(
    call: RoutedCall, peaks: Peaks, measure: MeasureSettings, last_us: float | None
) -> Prediction:
    """Return the forecast of a mixture of experts.

    It counts the tokens over links in one or both directions, and the computation of a fused call
    in between."""
    rows_bytes = 2 * call.tokens * call.choices * call.hidden
    launch_s = rows_bytes / (peaks.bytes_per_s * _LINK_SHARE)
    if isinstance(call, ExpertCall):
        launch_s = 2 * launch_s + _computing_s(call, peaks)
    # Every rank computes the reference for the comparison by itself.
    made_bytes = 2 * call.rank_bytes(call.tokens * call.choices)
    return _of_ranks(
        (last_us * _MICRO if last_us else launch_s) + peaks.launch_s, measure, made_bytes, peaks
    )


def _computing_s(call: ExpertCall, peaks: Peaks) -> float:
    dtype = "int8" if call.is_int8 else "bfloat16"
    flops = 6 * call.tokens * call.choices * call.hidden * call.intermediate
    return max(flops / peaks.flops_of(dtype), call.working_bytes / peaks.bytes_per_s)


def _of_ranks(
    launch_s: float, measure: MeasureSettings, made_bytes: float, peaks: Peaks
) -> Prediction:
    launches = plan.WARM_UPS + measure.repeats_of(launch_s + _BEGIN_TOGETHER_S)
    once_s = _COLLECTIVE_S + made_bytes / peaks.fill_bytes_per_s
    return Prediction(launch_s, launches * (launch_s + _BEGIN_TOGETHER_S) + once_s)


def _roofline_s(case: Case, op: OpSpec, peaks: Peaks) -> float:
    compute_s = op.flops(case) / peaks.flops_of(_compute_dtype(case))
    return max(compute_s, op.traffic(case) / peaks.bytes_per_s) + peaks.launch_s


def _compute_dtype(case: Case) -> str:
    """Return torch's name for the first input's dtype, which selects the compute unit. Numbers of
    eight bits or fewer are as fast as INT8."""
    known = (slot.known_dtype for slot in case.inputs or ())
    first = next((dtype for dtype in known if dtype), None)
    if first is None:
        return "float32"
    return "int8" if first.held_as else first.torch_name


def _cpu_peaks(details: Mapping[str, str]) -> Peaks:
    known = cpu_rates()
    flags = frozenset(details.get("flags", "").split()) | {""}
    threads = _number(details.get("threads"), 1.0)
    clock_hz = _number(details.get("clock_mhz"), known.clock_mhz) * 1e6
    per_cycle = next(flops for flag, flops in _FLOPS_PER_CYCLE if flag in flags)
    float32 = threads * clock_hz * per_cycle * known.compute_share
    flops = {"float32": float32, "float64": float32 / 2}
    for dtype, ways in _NATIVE.items():
        flops[dtype] = float32 * next((factor for flag, factor in ways if flag in flags), 1)
    return Peaks(
        flops_per_s=flops,
        bytes_per_s=min(threads * known.thread_gb_per_s, known.gb_per_s) * 1e9,
        launch_s=known.launch_us * _MICRO,
        fill_bytes_per_s=known.thread_gb_per_s / _PASSES_TO_FILL * 1e9,
        session_start_s=known.session_start_s,
        gang_start_s=known.gang_start_s,
        case_s=known.case_ms / 1e3,
        export_s=known.profile_us * _MICRO,
    )


def with_overheads(peaks: Peaks, usages: Sequence[Usage]) -> Peaks:
    """Return the peaks with the overheads that sessions of the same stack had: until the first
    case, of the host for each case, and of the profiler for each launch. The start is the median of
    the usages, the lower one of two: the first session on a node loads files that others find in
    memory.

    Example: exports of 1,000 launches in 6 s and of 9,000 in 10 s add 5.5 s to the start of every
    session, and 0.5 ms to each launch."""
    seen = [one for one in usages if one.sessions and one.cases and one.launches]
    if not seen:
        return peaks
    total = total_usage(seen)
    begun_s = median_low(one.startup_s / one.sessions for one in seen)
    loop_s = total.wall_s - total.startup_s - total.export_s - total.busy_us * _MICRO
    export_s = [one.export_s / one.sessions for one in seen]
    launches = [one.launches / one.sessions for one in seen]
    once_s, launch_s = 0.0, fsum(export_s) / fsum(launches)
    if max(launches) >= 2 * min(launches):
        fitted = linear_regression(launches, export_s)
        if fitted.slope >= 0 and fitted.intercept >= 0:
            once_s, launch_s = fitted.intercept, fitted.slope
    return replace(
        peaks,
        session_start_s=begun_s + once_s,
        case_s=max(0.0, loop_s / total.cases),
        export_s=launch_s,
    )


def _accelerator_peaks(facts: DevicePeaks) -> Peaks:
    bytes_per_s = facts.bytes_per_s * facts.memory_share
    return Peaks(
        flops_per_s={
            dtype: tflops * 1e12 * facts.compute_share for dtype, tflops in facts.tflops.items()
        },
        bytes_per_s=bytes_per_s,
        launch_s=facts.launch_us * _MICRO,
        fill_bytes_per_s=bytes_per_s / _PASSES_TO_FILL,
        session_start_s=facts.session_start_s,
        gang_start_s=facts.gang_start_s,
    )


def _number(text: str | None, otherwise: float) -> float:
    """Return the positive number in a text of a stack's details, or `otherwise`."""
    try:
        value = parse_number(text or "")
    except ValueError:
        return otherwise
    return value if 0 < value < float("inf") else otherwise
