"""How well a version of the database covers the launches of a model or a profile. Pure."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from collector.model.record import CaseRecord
from jobs.planning.workload import WorkloadCase
from opmeter.answers import Answer, Channel, Reason


class CoverageStatus(StrEnum):
    """The coverage status of a case.

    - `exact`: the case was measured.
    - `imported`: only another tool measured it.
    - `reused`: the case has none, and that of an older stack is reused for it.
    - `between`: a query interpolates the case between measured ones that differ in sizes alone.
    - `outside`: such cases are measured, but the case is not between them.
    - `missing`: none is measured.
    - `failed`: the case was tried and has no duration.
    - `unsupported`: no operator measures the case."""

    EXACT = "exact"
    IMPORTED = "imported"
    REUSED = "reused"
    BETWEEN = "between"
    OUTSIDE = "outside"
    MISSING = "missing"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class CoveredCase:
    """A case with its status; `half_width` is that of its own duration as a share, if known."""

    workload: WorkloadCase
    status: CoverageStatus
    half_width: float | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """The share that is `exact`: of the cases, of the launches and of the time."""

    cases: float
    launches: float
    time: float


@dataclass(frozen=True, slots=True)
class UserMetrics:
    """Hit rates as the users of a lookup count them, with kernel types as operators.

    - M1: launches.
    - M2: kernel types; one missed case makes the kernel type a miss.
    - M3: kernel types without the free ones.
    - M4: distinct cases without those of free kernel types.
    - M5: time.

    None if there is nothing to count."""

    m1: float | None
    m2: float | None
    m3: float | None
    m4: float | None
    m5: float | None


def covered_cases(
    workload: Sequence[WorkloadCase],
    answer: Callable[[CaseRecord], Answer],
    failed: Collection[str] = (),
    unsupported: Collection[str] = (),
    unreadable: Collection[str] = (),
) -> tuple[CoveredCase, ...]:
    """Return the coverage status of each case: `answer` is that of a query for it. `failed` and
    `unsupported` are ids, and so are `unreadable`: measured cases whose inputs no profile shows,
    so that no query finds them."""

    def coverage_status(record: CaseRecord, found: Answer) -> CoverageStatus:
        if record.case_id in unreadable:
            return CoverageStatus.EXACT
        if found.channel in (Channel.MEASURED, Channel.POOLED):
            return CoverageStatus.EXACT
        if found.channel is Channel.REUSED:
            return CoverageStatus.REUSED
        if found.channel is Channel.IMPORTED:
            return CoverageStatus.IMPORTED
        if record.case_id in unsupported:
            return CoverageStatus.UNSUPPORTED
        if record.case_id in failed:
            return CoverageStatus.FAILED
        if found.reason is None:
            return CoverageStatus.BETWEEN
        is_outside = found.reason in (Reason.OUTSIDE, Reason.NO_LENGTH)
        return CoverageStatus.OUTSIDE if is_outside else CoverageStatus.MISSING

    def covered(one: WorkloadCase) -> CoveredCase:
        found = answer(one.record)
        status = coverage_status(one.record, found)
        is_own = status is CoverageStatus.EXACT and found.reason is None
        return CoveredCase(one, status, found.high_us / found.value_us - 1 if is_own else None)

    return tuple(map(covered, workload))


def share(found: Iterable[CoveredCase], status: CoverageStatus) -> Share:
    """Return the share of cases, launches and time that has this status; 0 if there are none."""
    rows = tuple(found)
    counts = (
        [1.0 for _ in rows],
        [float(one.workload.launches) for one in rows],
        [one.workload.time_us for one in rows],
    )
    return Share(*(_ratio(rows, of, status) or 0.0 for of in counts))


def user_metrics(found: Sequence[CoveredCase], free: Collection[str]) -> UserMetrics:
    """Return M1 to M5. `free` has the kernel types that an op_mapping counts as zero_cost."""
    paid = [one for one in found if one.workload.record.case.kernel_type not in free]
    return UserMetrics(
        m1=_ratio(found, [float(one.workload.launches) for one in found]),
        m2=_of_kernels(found),
        m3=_of_kernels(paid),
        m4=_ratio(paid, [1.0] * len(paid)),
        m5=_ratio(found, [one.workload.time_us for one in found]),
    )


def _of_kernels(found: Sequence[CoveredCase]) -> float | None:
    hit: dict[str, bool] = {}
    for one in found:
        kernel = one.workload.record.case.kernel_type
        hit[kernel] = hit.get(kernel, True) and one.status is CoverageStatus.EXACT
    return sum(hit.values()) / len(hit) if hit else None


def _ratio(
    found: Sequence[CoveredCase], of: Sequence[float], status: CoverageStatus = CoverageStatus.EXACT
) -> float | None:
    whole = fsum(of)
    part = fsum(x for one, x in zip(found, of, strict=True) if one.status is status)
    return part / whole if whole else None
