"""How far a version of the database covers what a model or a profile launches. Pure."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

import numpy as np
import numpy.typing as npt

from collector.case import Case
from collector.ops.twins import twins_of
from collector.record import CaseRecord
from collector.vocabulary import RUNTIME_PREFIX
from jobs.planning.surfaces import alike, sizes

Floats = npt.NDArray[np.float64]

_BLOCK = 1024  # places looked at together: most cases find their neighbours among a few
# Columns of numbers that lengths decide, as shapes do others: of attention, and of a message.
_OF_LENGTHS = frozenset(
    RUNTIME_PREFIX + name
    for name in (
        *("actual_seq_lengths_shape", "actual_seq_lengths_values"),
        *("actual_seq_lengths_kv_shape", "actual_seq_lengths_kv_values"),
        *("avg_seq_len", "block_table_shape", "block_table_valid_blocks", "message_bytes"),
    )
)


class Standing(StrEnum):
    """Of a case: `exact` has a duration. `between` measured cases of its curve (its kernel, dtypes,
    formats and settings): one is nowhere larger, and another nowhere smaller. `outside` of those
    that its curve has. `missing` without any. `failed` was tried, and has none."""

    EXACT = "exact"
    BETWEEN = "between"
    OUTSIDE = "outside"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case, how often it is launched, and what all of that takes: by the profile it is of, or by
    the roofline of the device."""

    record: CaseRecord
    launches: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Covered:
    wanted: Wanted
    standing: Standing


@dataclass(frozen=True, slots=True)
class Share:
    """What of something is `exact`, by three counts of all."""

    cases: float
    launches: float
    time: float


@dataclass(frozen=True, slots=True)
class UserMetrics:
    """As those who look rows up count them, with kernel types for operators: M1 of launches, M2 of
    kernel types, of which one missed case makes a miss, M3 of those without what counts as free,
    M4 of distinct cases without it, M5 of the time. None where there is nothing to count."""

    m1: float | None
    m2: float | None
    m3: float | None
    m4: float | None
    m5: float | None


def covered(
    wanted: Sequence[Wanted], measured: Mapping[str, Case], failed: Collection[str]
) -> tuple[Covered, ...]:
    """The standing of each case. `measured` are the cases with a duration, by id."""
    places_of: dict[Hashable, list[list[float]]] = defaultdict(list)
    for case in measured.values():
        places_of[_curve(case)].append(_place(case))
    known = {curve: _Places.of(places) for curve, places in places_of.items()}

    def standing(record: CaseRecord) -> Standing:
        if any(one.case_id in measured for one in twins_of(record.case)):
            return Standing.EXACT
        if record.case_id in failed:
            return Standing.FAILED
        curves = [known[c] for c in map(_curve, twins_of(record.case)) if c in known]
        if not curves:
            return Standing.MISSING
        place = np.array(_place(record.case))
        is_between = any(places.bracket(place) for places in curves)
        return Standing.BETWEEN if is_between else Standing.OUTSIDE

    return tuple(Covered(one, standing(one.record)) for one in wanted)


@dataclass(frozen=True, slots=True)
class _Places:
    """The measured cases of a curve (cases, sizes), and their least and greatest sizes."""

    all: Floats
    least: Floats
    greatest: Floats

    @classmethod
    def of(cls, places: Sequence[Sequence[float]]) -> "_Places":
        found = np.array(places)
        return cls(found, found.min(axis=0), found.max(axis=0))

    def bracket(self, place: Floats) -> bool:
        """Whether one of them is nowhere larger, and another nowhere smaller."""
        if (place < self.least).any() or (place > self.greatest).any():
            return False
        below = above = False
        for start in range(0, len(self.all), _BLOCK):
            block = self.all[start : start + _BLOCK]
            below = below or bool((block <= place).all(axis=1).any())
            above = above or bool((block >= place).all(axis=1).any())
            if below and above:
                return True
        return False


def share(found: Iterable[Covered], standing: Standing) -> Share:
    """What of all cases, launches and time has a standing; 0 of nothing."""
    rows = tuple(found)
    counts = (
        [1.0 for _ in rows],
        [float(one.wanted.launches) for one in rows],
        [one.wanted.time_us for one in rows],
    )
    return Share(*(_ratio(rows, of, standing) or 0.0 for of in counts))


def user_metrics(found: Sequence[Covered], free: Collection[str]) -> UserMetrics:
    """M1 to M5; `free` are the kernel types that an op_mapping counts as zero_cost."""
    paid = [one for one in found if one.wanted.record.case.kernel_type not in free]
    return UserMetrics(
        m1=_ratio(found, [float(one.wanted.launches) for one in found]),
        m2=_of_kernels(found),
        m3=_of_kernels(paid),
        m4=_ratio(paid, [1.0] * len(paid)),
        m5=_ratio(found, [one.wanted.time_us for one in found]),
    )


def _of_kernels(found: Sequence[Covered]) -> float | None:
    hit: dict[str, bool] = {}
    for one in found:
        kernel = one.wanted.record.case.kernel_type
        hit[kernel] = hit.get(kernel, True) and one.standing is Standing.EXACT
    return sum(hit.values()) / len(hit) if hit else None


def _ratio(
    found: Sequence[Covered], of: Sequence[float], standing: Standing = Standing.EXACT
) -> float | None:
    whole = fsum(of)
    part = fsum(x for one, x in zip(found, of, strict=True) if one.standing is standing)
    return part / whole if whole else None


def _curve(case: Case) -> Hashable:
    """What a case shares with those that differ in sizes and lengths alone."""
    kernel, inputs, outputs, op_state, attributes = alike(case)
    settings = tuple((name, "" if _is_length(name) else text) for name, text in attributes)
    return kernel, inputs, outputs, op_state, settings


def _place(case: Case) -> list[float]:
    """Its sizes, and the mean of each column of lengths."""
    lengths = (text for name, text in case.attributes if _is_length(name))
    return [*map(float, sizes(case)), *map(_mean, lengths)]


def _is_length(name: str) -> bool:
    return name in _OF_LENGTHS


def _mean(text: str) -> float:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return 0.0
    return fsum(numbers) / len(numbers)
