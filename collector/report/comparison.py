"""Comparison of a profile with the durations of a database version.

A duration in the run (in situ) is compared with the isolated duration and, if it was measured, with
the duration behind the launches that precede the case in a run (in context). The step of the run is
rebuilt from them; time that they do not explain is listed by cause. Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from collector.database.state import State
from collector.database.version_quality import shown_version
from collector.model.case import Case, in_each_state
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import DYNAMIC, GRAPH, LAUNCHED_BY, STATIC
from collector.ops.registry import twins_of
from collector.profiles.step_trace import StepTrace
from collector.quality.gates import warnings_cell
from collector.ranks.collective import is_collective

_SHARES = (0.1, 0.5, 0.9)
PARTS = (
    *("isolated", "neighbours", "context", "unknown", "overlap", "messages", "waiting", "host"),
)


@dataclass(frozen=True, slots=True)
class Isolated:
    """The duration of a launch measured in isolation, with its 95 % interval if it is known, and
    the names of the gates that warn of it, separated by `;`.

    The interval covers sessions and devices."""

    mean_us: float
    low_us: float | None = None
    high_us: float | None = None
    warnings: str = ""


@dataclass(frozen=True, slots=True)
class ComparedCase:
    """A case of the profile.

    `kernel_type` is the one of its isolated duration: a twin's if the runtime chose another. `why`
    is the outcome if there is none. `in_context` is its duration behind the launches before it, if
    that was measured."""

    record: CaseRecord
    in_situ: ProfileStatistics
    isolated: Isolated | None
    kernel_type: str
    why: str = ""
    in_context: Isolated | None = None

    @property
    def is_message(self) -> bool:
        return is_collective(self.record.kernel_type)

    @property
    def isolated_us(self) -> float:
        """Return the isolated time of all its launches; 0 if it is unknown."""
        return self.in_situ.count * self.isolated.mean_us if self.isolated else 0.0

    @property
    def neighbours_us(self) -> float:
        """Return how much longer all its launches take in context than isolated; 0 if unknown."""
        if self.isolated is None or self.in_context is None:
            return 0.0
        return self.in_situ.count * (self.in_context.mean_us - self.isolated.mean_us)

    @property
    def ratio(self) -> float | None:
        """Return the ratio of in situ to isolated."""
        return self.in_situ.mean_us / self.isolated.mean_us if self.isolated else None

    @property
    def context_ratio(self) -> float | None:
        """Return the ratio of in situ to in context."""
        return self.in_situ.mean_us / self.in_context.mean_us if self.in_context else None

    @property
    def warnings(self) -> str:
        """Return the names of the gates that warn of one of its durations."""
        known = filter(None, (self.isolated, self.in_context))
        return warnings_cell(name for one in known for name in one.warnings.split(";") if name)


@dataclass(frozen=True, slots=True)
class KernelRatios:
    """The cases of one kernel type.

    `ratios` compares in situ with isolated durations, weighted by launches: the 10 %, 50 % and 90 %
    quantiles over the launches with an isolated duration. `context_ratios` is the same for
    durations in context. None if no case has such a duration."""

    kernel_type: str
    cases: int
    launches: int
    in_situ_us: float
    compared_us: float  # in situ time of the cases with an isolated duration
    isolated_us: float
    ratios: tuple[float, float, float] | None
    context_ratios: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class StepSum:
    """The time of the profile's steps and its parts, which add up to `measured_us`.

    isolated       kernels, isolated durations
    neighbours     measured extra time of the kernels in context; negative if they are faster
    context        remaining extra time of the same kernels in the run
    unknown        in situ time of kernels without an isolated duration
    overlap        computing time of the device minus the time of its kernels: some ran concurrently
    messages       collectives, isolated durations
    waiting        the other communication that was not overlapped: ranks waiting for each other,
                   messages waiting for each other, and messages without an isolated duration
    host           nothing ran"""

    measured_us: float
    isolated_us: float
    neighbours_us: float
    context_us: float
    unknown_us: float
    overlap_us: float
    messages_us: float
    waiting_us: float
    host_us: float

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Return each part by its name, in order."""
        return tuple((name, getattr(self, f"{name}_us")) for name in PARTS)


@dataclass(frozen=True, slots=True)
class M6:
    """The three ratios that users of such databases call M6.

    All are relative to the computing time and the communication that was not overlapped. `covered`
    is the in situ time of the covered cases, `forecast` uses the roofline for missing cases, and
    `isolated` is the isolated time of the covered cases."""

    covered: float
    forecast: float
    isolated: float


@dataclass(frozen=True, slots=True)
class StaticGain:
    """What kernels that are built for their shapes gain, by kernel type: the isolated time of its
    launches in the profile, for the cases that have both a dynamic and a static duration."""

    kernel_type: str
    cases: int
    launches: int
    dynamic_us: float
    static_us: float

    @property
    def gain(self) -> float:
        """Return the share of the dynamic time that static kernels save; negative if they lose."""
        return 1 - self.static_us / self.dynamic_us


def static_gains(
    records: Iterable[CaseRecord], isolated: Mapping[str, Isolated]
) -> tuple[StaticGain, ...]:
    """Return the gain of each kernel type that has cases in both states, most time first.

    `isolated` are durations by case id. Kernels of a graph are not of these states."""
    found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for record in records:
        case = replace(record.case, op_state=DYNAMIC)
        if record.profile is None or case.attribute(LAUNCHED_BY) == GRAPH:
            continue
        both = _both_states(case, isolated)
        if both is not None:
            found[case.kernel_type].append((record.profile.count, *both))
    gains = (_gain(name, of) for name, of in found.items())
    return tuple(sorted(gains, key=lambda one: (-one.dynamic_us, one.kernel_type)))


def _both_states(case: Case, isolated: Mapping[str, Isolated]) -> tuple[float, float] | None:
    """Return the durations of a case, dynamic and static, of the first twin that has both."""
    for twin in twins_of(case):
        dynamic = isolated.get(twin.case_id)
        static = isolated.get(replace(twin, op_state=STATIC).case_id)
        if dynamic is not None and static is not None:
            return dynamic.mean_us, static.mean_us
    return None


def _gain(kernel_type: str, found: Sequence[tuple[int, float, float]]) -> StaticGain:
    return StaticGain(
        kernel_type,
        len(found),
        sum(count for count, _, _ in found),
        fsum(count * dynamic for count, dynamic, _ in found),
        fsum(count * static for count, _, static in found),
    )


def compare_cases(
    records: Iterable[CaseRecord],
    isolated: Mapping[str, Isolated],
    why: Mapping[str, str],
    in_context: Mapping[str, Isolated] | None = None,
) -> tuple[ComparedCase, ...]:
    """Return the cases that a profile measured.

    `isolated` are durations by case id, `why` the outcomes of the cases without one, `in_context`
    durations behind the launches before a case."""
    return tuple(
        _compared(record, record.profile, isolated, why, in_context or {})
        for record in records
        if record.profile
    )


def by_kernel(found: Iterable[ComparedCase]) -> tuple[KernelRatios, ...]:
    """Return one row per kernel type, most in situ time first."""
    kernels: dict[str, list[ComparedCase]] = defaultdict(list)
    for one in found:
        kernels[one.record.case.kernel_type].append(one)
    rows = (_kernel(name, of) for name, of in kernels.items())
    return tuple(sorted(rows, key=lambda row: (-row.in_situ_us, row.kernel_type)))


def step_sum(found: Sequence[ComparedCase], trace: StepTrace) -> StepSum:
    """Return the time of the profile's steps, by cause."""
    kernels = [one for one in found if not one.is_message]
    known = [one for one in kernels if one.isolated]
    in_situ_us = _in_situ_us(kernels)
    isolated_us = fsum(one.isolated_us for one in known)
    neighbours_us = fsum(one.neighbours_us for one in known)
    # Limited to the communication of the step: messages that ran concurrently with kernels do not
    # count.
    messages_us = min(
        trace.communication_us, fsum(one.isolated_us for one in found if one.is_message)
    )
    return StepSum(
        measured_us=trace.whole_us,
        isolated_us=isolated_us,
        neighbours_us=neighbours_us,
        context_us=_in_situ_us(known) - isolated_us - neighbours_us,
        unknown_us=in_situ_us - _in_situ_us(known),
        overlap_us=trace.computing_us - in_situ_us,
        messages_us=messages_us,
        waiting_us=trace.communication_us - messages_us,
        host_us=trace.free_us,
    )


def m6(
    found: Sequence[ComparedCase], trace: StepTrace, roofline_us: Callable[[CaseRecord], float]
) -> M6 | None:
    """Return the M6 ratios; None for a profile in which nothing ran.

    `roofline_us` returns the duration of a launch at the device's rates."""
    whole_us = trace.computing_us + trace.communication_us
    if not whole_us:
        return None
    known = [one for one in found if one.isolated]
    isolated_us = fsum(one.isolated_us for one in known)
    rest_us = fsum(
        one.in_situ.count * roofline_us(one.record) for one in found if one.isolated is None
    )
    return M6(
        _in_situ_us(known) / whole_us, (isolated_us + rest_us) / whole_us, isolated_us / whole_us
    )


def _compared(
    record: CaseRecord,
    in_situ: ProfileStatistics,
    isolated: Mapping[str, Isolated],
    why: Mapping[str, str],
    in_context: Mapping[str, Isolated],
) -> ComparedCase:
    case = record.case
    _, behind = _time_of(case, in_context)
    kernel_type, found = _time_of(case, isolated)
    missing = "" if found else why.get(case.case_id, "missing")
    return ComparedCase(record, in_situ, found, kernel_type, missing, behind)


def _time_of(case: Case, times: Mapping[str, Isolated]) -> tuple[str, Isolated | None]:
    """Return the duration of a case or of a twin, and whose it is; None if there is none.

    For a case of unknown state it is the duration of the only state that has one."""
    for one in twins_of(case):
        if (found := times.get(one.case_id)) is not None:
            return one.kernel_type, found
        if not one.op_state:
            known = [time for each in in_each_state(one) if (time := times.get(each.case_id))]
            if len(known) == 1:
                return one.kernel_type, known[0]
    return case.kernel_type, None


def _kernel(name: str, found: Sequence[ComparedCase]) -> KernelRatios:
    known = [one for one in found if one.isolated]
    return KernelRatios(
        name,
        len(found),
        sum(one.in_situ.count for one in found),
        _in_situ_us(found),
        _in_situ_us(known),
        fsum(one.isolated_us for one in known),
        _spread([(one.ratio, one.in_situ.count) for one in found]),
        _spread([(one.context_ratio, one.in_situ.count) for one in found]),
    )


def _spread(reported: Sequence[tuple[float | None, int]]) -> tuple[float, float, float] | None:
    known = [(ratio, count) for ratio, count in reported if ratio is not None]
    if not known:
        return None
    ratios, counts = zip(*known, strict=True)
    order = np.argsort(ratios, kind="stable")
    ends = np.cumsum(np.asarray(counts, np.float64)[order])
    at = np.searchsorted(ends, np.asarray(_SHARES) * ends[-1])
    low, middle, high = np.asarray(ratios)[order][np.minimum(at, len(order) - 1)].tolist()
    return low, middle, high


def _in_situ_us(found: Iterable[ComparedCase]) -> float:
    return fsum(one.in_situ.total_us for one in found)


def isolated_times(
    state: State, version_path: str, *, cache: str | None = None
) -> tuple[dict[str, Isolated], dict[str, str]]:
    """Return the duration of each case that has one, and the outcome of each other case, by id.

    `cache` restricts the result to measurements in that state of the caches."""
    shown = shown_version(state, version_path, cache=cache)
    names = ("case", "good", "outcome", "measurement")
    columns = (shown.best[name].to_pylist() for name in names)
    found: dict[str, Isolated] = {}
    why: dict[str, str] = {}
    for case, is_good, outcome, measurement in zip(*columns, strict=True):
        if not is_good:
            why[case] = outcome
            continue
        known = shown.intervals.of.get(measurement)
        low_us, high_us = (known.low_us, known.high_us) if known else (None, None)
        warnings = warnings_cell(shown.warnings.get(case, ()))
        found[case] = Isolated(shown.mean_us[case], low_us, high_us, warnings)
    return found, why
