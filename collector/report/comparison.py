"""A profile against what a version of the database says of its cases: in situ, as the run had them,
against isolated, as they were measured apart, and behind the launches that stand before them in a
run, where they were measured so, too; and the step of the run, rebuilt of what is known.

Nothing of the step is hidden: what its isolated parts do not explain is listed by cause. Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from collector.database.state import State
from collector.database.version_quality import shown_version
from collector.model.record import CaseRecord, ProfileStatistics
from collector.ops.registry import twins_of
from collector.profiles.step_trace import StepTrace
from collector.ranks.collective import is_collective

_SHARES = (0.1, 0.5, 0.9)
PARTS = (
    *("isolated", "neighbours", "context", "unknown", "overlap", "messages", "waiting", "host"),
)


@dataclass(frozen=True, slots=True)
class Isolated:
    """The duration of a launch that was measured apart; where it lies with 95 % over sessions and
    devices, if that is known."""

    mean_us: float
    low_us: float | None = None
    high_us: float | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """A case of the profile. `kernel_type` is that under which its isolated time stands, a twin's
    where the runtime chose another; `why` says what is instead of one. `in_context` is what it took
    behind the launches before it, where that was measured."""

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
        """Of all its launches; 0 where it is not known."""
        return self.in_situ.count * self.isolated.mean_us if self.isolated else 0.0

    @property
    def neighbours_us(self) -> float:
        """How much longer all its launches take behind those before them than apart; 0 where one
        of the two is not known."""
        if self.isolated is None or self.in_context is None:
            return 0.0
        return self.in_situ.count * (self.in_context.mean_us - self.isolated.mean_us)

    @property
    def ratio(self) -> float | None:
        """In situ by isolated."""
        return self.in_situ.mean_us / self.isolated.mean_us if self.isolated else None

    @property
    def context_ratio(self) -> float | None:
        """In situ by what it took behind the launches before it."""
        return self.in_situ.mean_us / self.in_context.mean_us if self.in_context else None


@dataclass(frozen=True, slots=True)
class KernelRatios:
    """The cases of one kernel type: their times of all launches, and of those with an isolated time
    how in situ compares, by launches: a tenth lies below the first, half below the second, a tenth
    above the third; `context_ratios` the same by what they took behind other launches. None where
    no case has such a time."""

    kernel_type: str
    cases: int
    launches: int
    in_situ_us: float
    compared_us: float  # in situ, of the cases that have an isolated time
    isolated_us: float
    ratios: tuple[float, float, float] | None
    context_ratios: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class StepSum:
    """The time of the profile's steps and what it is made of; the parts add up to `measured_us`.

    isolated       kernels, as they were measured apart
    neighbours     how much longer they take behind the launches before them, as was measured, too;
                   negative where shorter
    context        how much longer still the same kernels took in the run
    unknown        in situ, kernels without an isolated time
    overlap        what the device computed less than its kernels took: some ran beside others
    messages       collectives, as they were measured apart
    waiting        the other communication that nothing hid: of ranks for each other, of messages
                   for each other, and of messages without an isolated time
    host           nothing ran
    """

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
        """Each by its name, in order."""
        return tuple((name, getattr(self, f"{name}_us")) for name in PARTS)


@dataclass(frozen=True, slots=True)
class M6:
    """The three ways in which users of such databases have called a ratio M6, all by what computed
    and what communicated unhidden: what in situ is covered, a forecast that takes the roofline for
    what is missing, and what is covered as it was measured apart."""

    covered: float
    forecast: float
    isolated: float


def compared(
    records: Iterable[CaseRecord],
    isolated: Mapping[str, Isolated],
    why: Mapping[str, str],
    in_context: Mapping[str, Isolated] | None = None,
) -> tuple[Compared, ...]:
    """The cases that a profile measured. `isolated` are durations by case id, `why` the outcomes of
    the cases without one, `in_context` durations behind the launches before a case."""
    return tuple(
        _compared(record, record.profile, isolated, why, in_context or {})
        for record in records
        if record.profile
    )


def by_kernel(found: Iterable[Compared]) -> tuple[KernelRatios, ...]:
    """A line a kernel type, that of most time in situ first."""
    kernels: dict[str, list[Compared]] = defaultdict(list)
    for one in found:
        kernels[one.record.case.kernel_type].append(one)
    rows = (_kernel(name, of) for name, of in kernels.items())
    return tuple(sorted(rows, key=lambda row: (-row.in_situ_us, row.kernel_type)))


def step_sum(found: Sequence[Compared], trace: StepTrace) -> StepSum:
    """The steps of the profile, by cause."""
    kernels = [one for one in found if not one.is_message]
    known = [one for one in kernels if one.isolated]
    in_situ_us = _in_situ_us(kernels)
    isolated_us = fsum(one.isolated_us for one in known)
    neighbours_us = fsum(one.neighbours_us for one in known)
    # No more than there was: what ran beside kernels is no part of a step's communication.
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
    found: Sequence[Compared], trace: StepTrace, roofline_us: Callable[[CaseRecord], float]
) -> M6 | None:
    """None of a profile in which nothing ran. `roofline_us` is a launch's at the device's rates."""
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
) -> Compared:
    case = record.case
    behind = next(filter(None, (in_context.get(one.case_id) for one in twins_of(case))), None)
    for one in twins_of(case):
        if (found := isolated.get(one.case_id)) is not None:
            return Compared(record, in_situ, found, one.kernel_type, in_context=behind)
    missing = why.get(case.case_id, "missing")
    return Compared(record, in_situ, None, case.kernel_type, missing, behind)


def _kernel(name: str, found: Sequence[Compared]) -> KernelRatios:
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


def _spread(told: Sequence[tuple[float | None, int]]) -> tuple[float, float, float] | None:
    """The ratios at _SHARES of the launches, of which each that is known stands for so many."""
    known = [(ratio, count) for ratio, count in told if ratio is not None]
    if not known:
        return None
    ratios, counts = zip(*known, strict=True)
    order = np.argsort(ratios, kind="stable")
    ends = np.cumsum(np.asarray(counts, np.float64)[order])
    at = np.searchsorted(ends, np.asarray(_SHARES) * ends[-1])
    low, middle, high = np.asarray(ratios)[order][np.minimum(at, len(order) - 1)].tolist()
    return low, middle, high


def _in_situ_us(found: Iterable[Compared]) -> float:
    return fsum(one.in_situ.total_us for one in found)


# The durations that a version of the database shows, with their intervals.


def isolated_times(
    state: State, version_path: str, *, cache: str | None = None
) -> tuple[dict[str, Isolated], dict[str, str]]:
    """The duration of each case that is shown with one, and the outcome of each that is not, by
    case id; with `cache` of what was measured in that state of the caches."""
    shown = shown_version(state, version_path, cache=cache)
    names = ("case", "good", "outcome", "mean_us", "measurement")
    columns = (shown.best[name].to_pylist() for name in names)
    found: dict[str, Isolated] = {}
    why: dict[str, str] = {}
    for case, is_good, outcome, mean_us, measurement in zip(*columns, strict=True):
        if not is_good:
            why[case] = outcome
            continue
        known = shown.intervals.of.get(measurement)
        bounds = (known.low_us, known.high_us) if known else (None, None)
        found[case] = Isolated(shown.mean_us(measurement, mean_us), *bounds)
    return found, why
