"""The time of a model's pass: its calls in order, with durations from a version of the database.

Durations that the version lacks, host costs, waits and copies are ranges, each with its name."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum, gcd, hypot

from collector.codec.errors import BadInput
from collector.database.host_sessions import LAUNCH, PASS
from collector.model.case import Case
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.ops.floor import least_us
from collector.ranks.collective import is_collective
from collector.ranks.gangs import is_of_gangs
from collector.report.model_pages import EXACT, PredictedLaunch, SimulatedPass
from collector.timeline.call_graph import NO_WORK, CallGraph, Cause, Quantity, TimedCall, scaled
from collector.timeline.pass_time import PassTime, simulate, widths
from collector.workloads.call_order import CallKind, PassCall
from collector.workloads.recorded_step import RecordedCopy, RecordedPass
from jobs.planning.forecast import Peaks, peaks_of
from jobs.planning.host_costs import MEASURED_HOST, HostCosts, HostOf
from jobs.planning.predicted_passes import (
    LaunchedPass,
    ModelLaunch,
    predicted_launch,
    raised_peaks,
)
from jobs.planning.workload import roofline_us
from opmeter.version import Version

EAGER, GRAPH = MODES = ("eager", "graph")


@dataclass(frozen=True, slots=True)
class AssumedTime:
    """A time without data in a database: its value and its range, in us, and where they are from.

    samples   of a distribution, of which each occurrence has one"""

    name: str
    cause: Cause
    value_us: float
    low_us: float
    high_us: float
    origin: str = "assumed, no data"
    samples: tuple[float, ...] = ()

    @property
    def quantity(self) -> Quantity:
        """Return a new quantity of this time, whose occurrences are equal unless there are samples
        of it."""
        ends = (self.value_us, self.low_us, self.high_us)
        return Quantity(self.name, self.cause, *ends, self.name, self.samples)


# Of a launch, a message or a copy, with all calls around it. vLLM-Ascend 0.18 without the time of
# CANN itself takes 37 us a launch of Qwen3-32B on two busy x86-64 cores; an eager step of
# Qwen3-30B-A3B takes 163.7 ms on a 910B (vllm-ascend#16049), which are some 130 us a launch.
HOST_CALL = AssumedTime("host, each call", Cause.HOST, 70.0, 35.0, 140.0)
# Of the host before the graph of a pass: inputs, metadata, sampling of the pass before. 3.4 ms and
# 27 us a layer, in the same way without CANN.
HOST_STEP = AssumedTime("host, before the graph", Cause.HOST, 5000.0, 3000.0, 10000.0)
# Of the host in CANN and the driver for a launch or a message: tiling, shapes, submission. The
# recording runtime has neither, so that measured host times are without it. The eager step of
# 163.7 ms (above) leaves 50 us for each of 1,050 launches beside the least time of the engine on
# two busy x86-64 cores, 112 ms; the least and the value are assumed.
CANN_CALL = AssumedTime("host, CANN for each launch", Cause.HOST, 20.0, 5.0, 60.0)
# Of a message: an all-reduce of 160 KB takes 81.7 us in passes of Qwen3-32B over 16 ranks, and 20.1
# us alone.
WAIT = AssumedTime("wait for other ranks, each message", Cause.WAITING, 30.0, 0.0, 120.0)
# 97.5 % of the launches in public profiles take up to 3.8 times the estimate, 99 % up to 5.4 times
# (241 cases, 2026-11-30); the median is 1.05 times.
_MOST_OF_ESTIMATE = 5.0
# Forecasts of messages err upwards: value, low and high of the cost of a step, and of the rate of a
# link. The 20.1 us above are within them.
_STEP_COSTS, _LINK_RATES = (0.5, 0.1, 2.0), (8.0, 32.0, 1.0)
_ROUTED = (0.5, 1 / 16, 2.0)  # of the forecast of a kernel that sends tokens to experts
_NO_ESTIMATE = (10.0, 100.0)  # us; of kernels whose work is unknown, which are mostly small
_COPY_US, _COPY_BYTES_PER_US = (1.0, 5.0, 50.0), (1e5, 1e4, 1e3)  # low, value, high
_MEASURED_SHARE = 0.06  # half-width of a duration after one session on one NPU
_ISSUED = (CallKind.LAUNCH, CallKind.MESSAGE, CallKind.COPY, CallKind.REPLAY, CallKind.UPDATE)
_BLOCKED_HOST = "host to host"
_METRICS, _OTHER = {"decode": "TPOT", "prefill": "TTFT"}, "pass"
_MOST_CALLS = 100_000  # of a pass, which has some 2,000


@dataclass(frozen=True, slots=True)
class StepAssumptions:
    """What no data says: of the host for a call, of the host before a graph whose order is assumed,
    of a message until the other ranks arrive, and of the host in CANN where the rest of its time is
    measured."""

    host_call: AssumedTime = HOST_CALL
    host_step: AssumedTime = HOST_STEP
    wait: AssumedTime = WAIT
    cann_call: AssumedTime = CANN_CALL


@dataclass(frozen=True, slots=True)
class KnownLaunch:
    """A launch with what the version knows about it."""

    launch: ModelLaunch
    predicted: PredictedLaunch
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class TimedPass:
    """A pass on its timeline.

    metric    TPOT, TTFT, or pass: one that gives neither alone
    order     where the order of its calls is from
    launches  by quantity
    host      the measured costs of the host, if there are any"""

    metric: str
    title: str
    mode: str
    order: str
    graph: CallGraph
    time: PassTime
    launches: Mapping[Quantity, KnownLaunch]
    host: HostCosts | None = None

    def measured_host_us(self) -> tuple[float, float]:
        """Return the measured time of the host, and all of it, as far as it has a value."""
        found = [
            self.graph.quantities[row]
            for row in self.graph.rows
            if row != NO_WORK and self.graph.quantities[row].cause is Cause.HOST
        ]
        measured = (one.value_us for one in found if one.group == MEASURED_HOST)
        return fsum(measured), fsum(one.value_us for one in found)

    @property
    def summary(self) -> SimulatedPass:
        """Return what a page shows of the pass."""
        return SimulatedPass(self.metric, self.mode, self.order, self.time)

    def unknown(self) -> tuple[int, tuple[float, float, float]]:
        """Return the number of launches, messages and copies without a duration, and their time
        together: low, value, high."""
        found = [
            self.graph.quantities[row]
            for row in self.graph.rows
            if row != NO_WORK and self.graph.quantities[row].cause is Cause.UNKNOWN
        ]
        low_us, value_us, high_us = (
            fsum(getattr(one, name) for one in found) for name in ("low_us", "value_us", "high_us")
        )
        return len(found), (low_us, value_us, high_us)


Predict = Callable[[ModelLaunch], PredictedLaunch]
Ends = tuple[float, float, float]  # value, low, high


def range_over_links(case: Case, peaks: Peaks) -> Ends | None:
    """Return the range of a call over ranks without data; None if its work is unknown, or if it is
    no call over ranks."""
    if is_collective(case.kernel_type):
        value_us, low_us, high_us = (
            roofline_us(
                case,
                replace(
                    peaks, launch_s=cost * peaks.launch_s, bytes_per_s=rate * peaks.bytes_per_s
                ),
            )
            for cost, rate in zip(_STEP_COSTS, _LINK_RATES, strict=True)
        )
    elif is_of_gangs(case):
        whole_us = roofline_us(case, peaks)
        value_us, low_us, high_us = (share * whole_us for share in _ROUTED)
    else:
        return None
    return (value_us, low_us, high_us) if value_us else None


class PassTimer:
    """Makes timelines of passes, with durations by `predict`.

    `over_links` is the range of a call over ranks without data; `least_us` is the least time of any
    launch."""

    def __init__(
        self,
        predict: Predict,
        over_links: Callable[[Case], Ends | None],
        least_us: float,
        assumed: StepAssumptions,
        host_of: HostOf = lambda mode: None,
    ) -> None:
        self._host_of = host_of
        self.predict, self._over_links, self._least_us = predict, over_links, least_us
        self._assumed = assumed
        self._host = assumed.host_call.quantity
        self._wait, self._cann = assumed.wait.quantity, assumed.cann_call.quantity

    def of_recording(
        self,
        one: RecordedPass,
        tables: tuple[Sequence[ModelLaunch], Sequence[ModelLaunch]],
    ) -> TimedPass:
        """Return a recorded pass: `tables` are its launches and its messages. Raises BadInput for
        an order that never ends, or that is too long."""
        _check_length(str(one), len(one.order))
        launches, messages = (list(map(self._known, table)) for table in tables)
        copies = list(map(_copied, one.copies))
        calls = one.order.calls
        mode = GRAPH if any(call.kind is CallKind.REPLAY for call in calls) else EAGER
        measured = self._host_of(mode)
        # The further kernels of a call have no time of the host.
        is_timed = any(call.host_ns for call in calls)

        def timed(call: PassCall) -> TimedCall:
            is_timed_call = call.host_ns > 0 or not is_timed
            is_issued = call.kind in _ISSUED and is_timed_call
            host, library = self._host if is_issued else None, None
            if measured is not None and is_timed_call:
                host = measured.call(call_name(one, call)) or host
                library = self._cann if call.kind in (CallKind.LAUNCH, CallKind.MESSAGE) else None
            if call.kind is CallKind.LAUNCH:
                work = launches[call.subject].quantity
                return TimedCall(call, host, work, library=library)
            if call.kind is CallKind.MESSAGE:
                work = messages[call.subject].quantity
                return TimedCall(call, host, work, self._wait, library=library)
            if call.kind is CallKind.COPY:
                copy = one.copies[call.subject]
                moved = None if copy.direction == _BLOCKED_HOST else copies[call.subject]
                return TimedCall(call, host, moved, None, copy.is_blocking)
            return TimedCall(call, host)

        known = {each.quantity: each for each in (*launches, *messages)}
        try:
            found = _simulated(_metric(one), str(one), mode, "recorded", map(timed, calls), known)
            return replace(found, host=measured)
        except ValueError as error:
            what = "expected an order that ends: the host waits for a graph before its update"
            raise BadInput(f"{one}: order: {what}") from error

    def of_model(self, found: LaunchedPass, mode: str) -> TimedPass:
        """Return a pass whose order is not recorded: all its launches follow each other on one
        stream. In a graph, one call of the host launches them. Raises BadInput for a pass that is
        too long."""
        _check_length(found.title, sum(one.times for one in found.launches))
        known = [self._known(one) for one in found.launches]
        measured = self._host_of(mode)
        calls: list[TimedCall] = []
        if mode == EAGER:
            host, library = self._host, None
            if measured is not None:
                # The host also issues launches that an assumed order lacks, as of sampling.
                more = measured.launches / max(1, sum(one.launch.times for one in known))
                host = scaled(measured.call(LAUNCH) or host, more)
                library = scaled(self._cann, more)
            calls += self._in_layers(known, host, library)
        else:
            host, library = self._assumed.host_step.quantity, None
            if measured is not None:
                host = measured.call(PASS) or host
                library = scaled(self._cann, measured.launches)
            calls.append(TimedCall(PassCall(CallKind.REPLAY, 0, 0), host, library=library))
            calls += self._in_layers(known, None, None)
            calls.append(TimedCall(PassCall(CallKind.REPLAY_END, 0, 0)))
        by_quantity = {one.quantity: one for one in known}
        order = "assumed: one stream, one launch after the other"
        metric = _METRICS.get(found.phase, _OTHER)
        simulated = _simulated(metric, found.title, mode, order, calls, by_quantity)
        return replace(simulated, host=measured)

    def _in_layers(
        self, known: Sequence[KnownLaunch], host: Quantity | None, library: Quantity | None
    ) -> Iterator[TimedCall]:
        """Yield the launches of each kind of layer in turn, layer by layer."""
        layers: dict[str, list[KnownLaunch]] = defaultdict(list)
        for one in known:
            layers[one.launch.layer].append(one)
        for of_layer in layers.values():
            times = gcd(*(one.launch.times for one in of_layer))
            layer = [
                self._call(one, host, library)
                for one in of_layer
                for _ in range(one.launch.times // times)
            ]
            for _ in range(times):
                yield from layer

    def _call(self, one: KnownLaunch, host: Quantity | None, library: Quantity | None) -> TimedCall:
        is_message = one.launch.is_message
        kind = CallKind.MESSAGE if is_message else CallKind.LAUNCH
        wait = self._wait if is_message else None
        return TimedCall(PassCall(kind, 0, 0), host, one.quantity, wait, library=library)

    def _known(self, launch: ModelLaunch) -> KnownLaunch:
        found = self.predict(launch)
        name = f"{launch.kernel_type} {launch.size}".strip()
        if found.value_us is not None and found.low_us is not None and found.high_us is not None:
            cause = Cause.COMMUNICATION if launch.is_message else Cause.COMPUTING
            group = f"{launch.kernel_type} {found.dtypes}"
            ends = (found.value_us, found.low_us, found.high_us)
            return KnownLaunch(launch, found, Quantity(name, cause, *ends, group))
        group = f"{launch.kernel_type}, unknown"
        ends = self._range(launch, found)
        return KnownLaunch(launch, found, Quantity(name, Cause.UNKNOWN, *ends, group))

    def _range(self, launch: ModelLaunch, found: PredictedLaunch) -> Ends:
        """Return the value and the ends of a duration that no data says."""
        least_us = found.least_us or self._least_us
        ends = None if launch.record is None else self._over_links(launch.record.case)
        if ends is None and found.estimate_us:
            ends = found.estimate_us, least_us, _MOST_OF_ESTIMATE * found.estimate_us
        value_us, low_us, high_us = ends or (_NO_ESTIMATE[0], least_us, _NO_ESTIMATE[1])
        return max(value_us, least_us), max(low_us, least_us), max(high_us, least_us)


def pass_timer(
    version: Version | None, stack: Stack, assumed: StepAssumptions, host_of: HostOf
) -> PassTimer:
    """Return a timer with the durations of a version, or without one at the rates of a device."""
    peaks = raised_peaks(stack, version) if version else peaks_of(stack)
    return PassTimer(
        lambda one: predicted_launch(one, version, stack, peaks),
        lambda case: range_over_links(case, peaks),
        least_us(stack),
        assumed,
        host_of,
    )


def call_name(one: RecordedPass, call: PassCall) -> str:
    """Return the name by which the cost of a recorded call is measured."""
    texts = {
        CallKind.LAUNCH: lambda at: one.launches[at].call,
        CallKind.MESSAGE: lambda at: one.messages[at].call,
        CallKind.CALL: lambda at: one.calls[at],
    }
    if call.kind not in texts:
        return call.kind
    return str(texts[call.kind](call.subject)).partition("(")[0].rpartition(" ")[2]


def _check_length(title: str, calls: int) -> None:
    if calls > _MOST_CALLS:
        raise BadInput(f"{title}: expected a pass of at most {_MOST_CALLS:,} calls, got {calls:,}")


def _metric(one: RecordedPass) -> str:
    """Return what the time of a pass is. Decodes that verify drafts give several tokens, and the
    first chunks of a prompt none."""
    is_alone = one.queries == (1 if one.phase == "decode" else one.keys)
    return _METRICS.get(one.phase, _OTHER) if is_alone else _OTHER


def _copied(copy: RecordedCopy) -> Quantity:
    low, value, high = (
        us + copy.size_bytes / rate for us, rate in zip(_COPY_US, _COPY_BYTES_PER_US, strict=True)
    )
    name = f"copy {copy.direction}, {copy.size_bytes:,} B"
    return Quantity(name, Cause.UNKNOWN, value, low, high, "copies")


def _simulated(
    metric: str,
    title: str,
    mode: str,
    order: str,
    calls: Iterator[TimedCall] | Sequence[TimedCall],
    launches: Mapping[Quantity, KnownLaunch],
) -> TimedPass:
    graph = CallGraph.of(calls)
    return TimedPass(metric, title, mode, order, graph, simulate(graph), launches)


# What makes the interval wide, and what narrows it.


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A quantity, how much its interval alone moves the time of the pass, and its share of the
    variance. `launch` is None for the host, waits and copies."""

    quantity: Quantity
    times: int
    width_us: float
    share: float
    launch: KnownLaunch | None

    @property
    def record(self) -> CaseRecord | None:
        """Return the case whose measurement narrows the interval; None for a measured one."""
        if self.launch is None or self.launch.predicted.source == EXACT:
            return None
        return self.launch.launch.record


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Cases to measure, most variance per device-second first, and what is left of the width.

    `left` is what is left of all width after these cases, `least` after every case that a device
    can measure."""

    cases: tuple[CaseRecord, ...]
    device_s: float
    left: float
    least: float

    @property
    def is_half(self) -> bool:
        return self.left <= 0.5


def error_budget(one: TimedPass) -> tuple[BudgetRow, ...]:
    """Return what makes the interval of a pass wide, the widest first."""
    times = Counter(one.graph.quantities[row] for row in one.graph.rows if row != NO_WORK)
    return budget_of(widths(one.graph), times, one.launches)


def budget_of(
    found: Mapping[Quantity, float],
    times: Mapping[Quantity, int],
    launches: Mapping[Quantity, KnownLaunch],
) -> tuple[BudgetRow, ...]:
    """Return quantities that move a time by these widths, the widest first."""
    groups = _group_widths(found)
    whole = fsum(width**2 for width in groups.values()) or 1.0
    rows = (
        BudgetRow(
            *(quantity, times[quantity], width, width * groups[quantity.group] / whole),
            launches.get(quantity),
        )
        for quantity, width in found.items()
        if width > 0
    )
    return tuple(sorted(rows, key=lambda row: (-row.share, row.quantity.name)))


def narrowing(
    rows: Sequence[BudgetRow], device_s: Callable[[CaseRecord], float | None], start_s: float
) -> Narrowing:
    """Return the cases that halve the width of an interval, or all that narrow it."""
    width = {row.quantity: row.width_us for row in rows}
    whole = hypot(*_group_widths(width).values()) or 1.0
    worth = []
    for row in rows:
        cost_s = None if row.record is None else device_s(row.record)
        if row.record is not None and cost_s is not None:
            worth.append((row.share / max(cost_s, 1e-9), row, row.record, cost_s))
    worth.sort(key=lambda one: (-one[0], one[1].quantity.name))
    cases: dict[str, CaseRecord] = {}
    spent_s, left, remaining = 0.0, 1.0, dict(width)
    for _, row, record, cost_s in worth:
        if left > 0.5 and record.case_id not in cases:
            cases[record.case_id] = record
            spent_s += cost_s
        remaining[row.quantity] *= _after_measuring(row.quantity)
        if record.case_id in cases:
            width[row.quantity] = remaining[row.quantity]
            left = hypot(*_group_widths(width).values()) / whole
    least = hypot(*_group_widths(remaining).values()) / whole
    return Narrowing(tuple(cases.values()), spent_s + (start_s if cases else 0.0), left, least)


def _after_measuring(one: Quantity) -> float:
    """Return the share of the width that is left of a duration that was measured."""
    return min(1.0, 2 * _MEASURED_SHARE * one.value_us / (one.high_us - one.low_us))


def _group_widths(found: Mapping[Quantity, float]) -> Mapping[str, float]:
    groups: dict[str, float] = defaultdict(float)
    for quantity, width in found.items():
        groups[quantity.group] += width
    return groups
