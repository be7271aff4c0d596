"""How far a version of the database covers what a model or a profile launches. Pure."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

import numpy as np
import numpy.typing as npt

from collector.case import Case
from collector.record import CaseRecord
from jobs.planning.serving_place import place_of

Floats = npt.NDArray[np.float64]

NEAR = 4.0  # how many times as large or as small a neighbour may be
_BLOCK = 1024  # cases looked at together: most find their neighbours among a few


class Standing(StrEnum):
    """Of a case: `exact` has a duration. `between` measured cases of its curve, which has the same
    weights, heads and settings: of tokens, requests and lengths one has nowhere more and at least a
    quarter of each, another nowhere less and at most four times. `outside` of those that its curve
    has. `missing` without any. `failed` was tried, and has none."""

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
    exact: set[Hashable] = set()
    sizes_of: dict[Hashable, list[tuple[float, ...]]] = defaultdict(list)
    for place in map(place_of, measured.values()):
        exact.add(place.exact)
        sizes_of[place.curve].append(place.sizes)
    known = {curve: _Measured.of(sizes) for curve, sizes in sizes_of.items()}

    def standing(record: CaseRecord) -> Standing:
        place = place_of(record.case)
        if record.case_id in measured or place.exact in exact:
            return Standing.EXACT
        if record.case_id in failed:
            return Standing.FAILED
        if (curve := known.get(place.curve)) is None:
            return Standing.MISSING
        return Standing.BETWEEN if curve.bracket(place.sizes) else Standing.OUTSIDE

    return tuple(Covered(one, standing(one.record)) for one in wanted)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The sizes of a curve's measured cases (cases, sizes); of each size that differs among them,
    where it stands, its values in order, and whose they are."""

    all: Floats
    axes: tuple[tuple[int, Floats, npt.NDArray[np.intp]], ...]

    @classmethod
    def of(cls, sizes: Sequence[Sequence[float]]) -> "_Measured":
        found = np.unique(np.array(sizes, np.float64), axis=0)
        told = [at for at in range(found.shape[1]) if np.ptp(found[:, at]) > 0] or [0]
        orders = [np.argsort(found[:, at], kind="stable") for at in told]
        axes = ((at, found[order, at], order) for at, order in zip(told, orders, strict=True))
        return cls(found, tuple(axes))

    def bracket(self, sizes: Sequence[float]) -> bool:
        """Whether one of them is nowhere larger, and another nowhere smaller, both near."""
        place = np.array(sizes, np.float64)
        return self._is_one(place / NEAR, place) and self._is_one(place, place * NEAR)

    def _is_one(self, least: Floats, most: Floats) -> bool:
        """Whether one lies between these, all sizes of it. Only those are looked at which do in
        the size in which fewest do."""
        near = min((self._within(*axis, least, most) for axis in self.axes), key=len)
        for at in range(0, len(near), _BLOCK):
            block = self.all[near[at : at + _BLOCK]]
            if ((least <= block) & (block <= most)).all(axis=1).any():
                return True
        return False

    @staticmethod
    def _within(
        at: int, values: Floats, whose: npt.NDArray[np.intp], least: Floats, most: Floats
    ) -> npt.NDArray[np.intp]:
        start, end = np.searchsorted(values, [least[at], np.nextafter(most[at], np.inf)])
        return whose[start:end]


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
