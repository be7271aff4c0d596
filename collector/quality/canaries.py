"""Drift of a session, from the durations of its canaries at its start, middle and end."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, fsum, log, sqrt
from statistics import fmean

import numpy as np

from collector.codec.text import percent
from collector.model.measurement import CanaryReading, Measurement
from collector.quality.evidence import Floats
from collector.quality.gates import OUTLIERS, gate_of_outcome
from collector.quality.statistics import MAD_TO_SIGMA, student_t_factor
from collector.quality.variance_prior import VariancePrior

# Probability of a false alarm in a session in which nothing changed.
_CANARIES_FALSE_ALARMS = 0.005
# Repeats at one place may agree by chance, or because of the ticks of a coarse clock.
_LEAST_DEVIATION = 0.002
DRIFTED = "the session drifted: "
WITHHELD = "canary band: "  # prefix of the fault of a session whose measurements are not shown


def drift(readings: Sequence[CanaryReading], prior: VariancePrior) -> str:
    """Return why a session's measurements do not describe one state of its device; empty if they
    do.

    Two places differ if one canary, or the average of all, differs by more than the spread of the
    repeats and the usual difference between places, which is that of two sessions on that kind of
    device."""
    worst = worst_change(readings, prior)
    return f"{DRIFTED}{worst}" if worst else ""


def worst_change(readings: Sequence[CanaryReading], prior: VariancePrior) -> "CanaryChange | None":
    """Return the largest change within a session beyond chance; None if there is none."""
    changes = list(_changes(readings))
    far = [change for change in changes if change.is_beyond(prior, len(changes))]
    return max(far, key=lambda change: abs(change.size), default=None)


def is_suspect(measurement: Measurement) -> bool:
    """Return whether another session may improve a measurement: something else used the device, the
    device changed during the session, or the repeats have no single duration."""
    is_drifted = any(warning.startswith(DRIFTED) for warning in measurement.warnings)
    is_disturbed = measurement.is_disturbed or (measurement.is_good and is_drifted)
    return is_disturbed or gate_of_outcome(measurement.outcome, measurement.reason) == OUTLIERS


@dataclass(frozen=True, slots=True)
class CanaryChange:
    """The same canaries at two places of a session; `variances` are the relative variances of
    one repeat of each canary, with these degrees of freedom."""

    first: Sequence[CanaryReading]
    second: Sequence[CanaryReading]
    variances: Sequence[float]
    degrees: int

    @property
    def size(self) -> float:
        """Return the logarithm of the ratio of the durations, second place over first."""
        return fmean(
            log(b.mean_us) - log(a.mean_us) for a, b in zip(self.first, self.second, strict=True)
        )

    def is_beyond(self, prior: VariancePrior, comparisons: int) -> bool:
        """Return whether the change is beyond chance, for this number of comparisons."""
        of_place = prior.ratio * prior.repeat_spread**2
        rows = zip(self.first, self.second, self.variances, strict=True)
        variance = fsum(v / a.repeats + v / b.repeats + 2 * of_place for a, b, v in rows)
        limit = student_t_factor(self.degrees, share=1 - _CANARIES_FALSE_ALARMS / comparisons)
        return abs(self.size) * len(self.first) > limit * sqrt(variance)

    def __str__(self) -> str:
        first, second = self.first[0], self.second[0]
        who = first.case if len(self.first) == 1 else "its canaries"
        return (
            f"{who} took {exp(self.size):.3f} times as long at its {second.place} as at its "
            f"{first.place}, {second.at_s - first.at_s:.0f} s before"
        )


def _changes(readings: Sequence[CanaryReading]) -> Iterator[CanaryChange]:
    by_case: dict[str, dict[str, CanaryReading]] = {}
    for reading in readings:
        by_case.setdefault(reading.case, {})[reading.place] = reading
    known: dict[str, tuple[float, int]] = {}  # the variance of one repeat, and its degrees
    for case, places in by_case.items():
        degrees = sum(reading.repeats - 1 for reading in places.values())
        squares = fsum((one.repeats - 1) * one.deviation**2 for one in places.values())
        known[case] = max(squares / degrees, _LEAST_DEVIATION**2), degrees
    for one, other in combinations(dict.fromkeys(r.place for r in readings), 2):
        cases = [
            case for case, readings in by_case.items() if one in readings and other in readings
        ]
        for group in [[case] for case in cases] + ([cases] if len(cases) > 1 else []):
            yield CanaryChange(
                [by_case[case][one] for case in group],
                [by_case[case][other] for case in group],
                [known[case][0] for case in group],
                sum(known[case][1] for case in group),
            )


# Speed of each session and each device, compared with the history of their stack's canaries
# (docs/evaluation/canaries.md). A factor is the ratio of a session's canary durations to
# those of the median session.

LEAST_SESSIONS = 6  # with a canary, for any of them to be an outlier
LEAST_FOR_BAND = 3  # with a canary, for any to exceed the band: with two, either may be the outlier
_CANARY_HISTORY_FALSE_ALARMS = 0.002  # probability in sessions in which nothing changed
_FAR = 3.0  # robust standard deviations, beyond which a session is excluded from the scale
_PRIOR_DEGREES = 3.0
_LEAST_WITHIN = 10  # degrees of freedom, required to estimate the spread within devices
_OF_MEDIAN = 1.57  # variance of a median over that of a mean, for many values
_NOISY = 4.0  # times the usual spread of repeats
_LEAST_NOISE = 0.02


def compared_device(node: str, serial: str, rank: object) -> str:
    """Return the name by which a device is compared: without a serial number that of its rank."""
    return f"{node} {serial}" if serial else f"{node} device {rank}"


@dataclass(frozen=True, slots=True)
class SessionReadings:
    """Canaries of one session on one device, with its caches in one state. `session` is unique;
    `began` orders the sessions of a device, for display."""

    session: str
    device: str
    cache: str
    began: str
    readings: tuple[CanaryReading, ...]


@dataclass(frozen=True, slots=True)
class Factor:
    """Ratio to the usual duration, with its 95 % interval."""

    factor: float
    low: float
    high: float

    @classmethod
    def of_log(cls, size: float, reach: float) -> "Factor":
        return cls(exp(size), exp(size - reach), exp(size + reach))

    def __str__(self) -> str:
        return f"{self.factor:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, slots=True)
class SessionFactor:
    """One session compared with the history. `fault` describes what is unusual, empty if nothing
    is; `is_beyond_band` if that exceeds what any valid session of its kind of device shows."""

    of: SessionReadings
    factor: Factor
    fault: str
    is_beyond_band: bool = False


@dataclass(frozen=True, slots=True)
class DeviceFactor:
    """One device over its sessions; `drift` has the factors of the earlier and the later half,
    if these differ beyond chance."""

    device: str
    sessions: int
    flagged: int
    factor: Factor
    drift: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class _Series:
    """Logarithms of the factors of one canary, or of the average of all, by session, with their
    robust standard deviation and its degrees of freedom."""

    name: str
    sizes: Mapping[str, float]
    scale: float
    degrees: float


def session_factors(
    sessions: Sequence[SessionReadings], prior: VariancePrior
) -> list[SessionFactor]:
    """Return the factor of every session of a stack that has canaries, in the order given. With
    too few sessions none is an outlier, except one that exceeded the band within itself."""
    found: dict[str, SessionFactor] = {}
    for cache in {one.cache for one in sessions}:
        own = [one for one in sessions if one.cache == cache and one.readings]
        series = _series(own, prior)
        usual = float(np.median([_deviation(one) for one in own])) if own else 0.0
        for one in own:
            average = series[-1]
            at_places = prior.ratio * prior.repeat_spread**2 / len({r.place for r in one.readings})
            within = _deviation(one) ** 2 / sum(r.repeats for r in one.readings)
            between = average.scale**2 / len(average.sizes)
            error = sqrt(within + at_places)
            reach = student_t_factor(average.degrees) * sqrt(error**2 + between)
            factor = Factor.of_log(average.sizes[one.session], reach)
            beyond = _beyond_band(one, series, prior)
            fault = beyond or _shift(one, series) or _noise(one, usual, len(own))
            found[one.session] = SessionFactor(one, factor, fault, bool(beyond))
    return [found[one.session] for one in sessions if one.session in found]


def device_factors(sessions: Sequence[SessionFactor], prior: VariancePrior) -> list[DeviceFactor]:
    """Return the factor of every device of the sessions, the slowest first."""
    by_device: dict[str, list[SessionFactor]] = {}
    for one in sorted(sessions, key=lambda one: (one.of.began, one.of.session)):
        by_device.setdefault(one.of.device, []).append(one)
    sizes = {
        device: np.array([log(one.factor.factor) for one in own])
        for device, own in by_device.items()
    }
    if not sizes:
        return []
    scale, degrees = _scale_within(list(sizes.values()), prior)
    reach = student_t_factor(degrees) * scale
    found = [
        DeviceFactor(
            device=device,
            sessions=len(own),
            flagged=sum(bool(one.fault) for one in own),
            factor=Factor.of_log(
                float(np.median(sizes[device])),
                reach * sqrt(_of_median(len(own)) + _of_median(len(sessions))),
            ),
            drift=_halves(sizes[device], scale, degrees),
        )
        for device, own in by_device.items()
    ]
    return sorted(found, key=lambda one: (-one.factor.factor, one.device))


def _series(sessions: Sequence[SessionReadings], prior: VariancePrior) -> list[_Series]:
    """Return the series of each canary and, if there are several, of the average of those that a
    session has, last."""
    levels: dict[str, dict[str, float]] = {}  # the median over the places of a session
    for one in sessions:
        places: dict[str, list[float]] = {}
        for reading in one.readings:
            places.setdefault(reading.case, []).append(log(reading.mean_us))
        for case, logs in places.items():
            levels.setdefault(case, {})[one.session] = float(np.median(logs))
    sizes = {case: _centred(readings) for case, readings in sorted(levels.items())}
    if len(sizes) > 1:
        means = {
            one.session: float(
                np.mean([own[one.session] for own in sizes.values() if one.session in own])
            )
            for one in sessions
        }
        sizes["its canaries"] = _centred(means)
    return [
        _Series(name, readings, *_scale(np.array(list(readings.values())), prior))
        for name, readings in sizes.items()
    ]


def _centred(readings: Mapping[str, float]) -> dict[str, float]:
    centre = float(np.median(list(readings.values())))
    return {session: level - centre for session, level in readings.items()}


def _scale(sizes: Floats, prior: VariancePrior) -> tuple[float, float]:
    """Return the standard deviation of the sessions about the median without outliers, and its
    degrees of freedom."""
    usual = prior.ratio * prior.repeat_spread**2
    robust = max(MAD_TO_SIGMA * float(np.median(np.abs(sizes))), sqrt(usual))
    near = sizes[np.abs(sizes) <= _FAR * robust]
    return _drawn(float(np.sum(near**2)), max(0, len(near) - 1), usual)


def _scale_within(sizes: Sequence[Floats], prior: VariancePrior) -> tuple[float, float]:
    """Return the same about the median of each device. A device with one session does not
    contribute. With too few sessions it is the spread of all sessions of the stack, which is at
    least as large, since it includes the differences between devices."""
    several = [own for own in sizes if len(own) > 1]
    if sum(len(own) - 1 for own in several) < _LEAST_WITHIN:
        return _scale(np.concatenate(sizes), prior)
    usual = prior.ratio * prior.repeat_spread**2
    off = np.concatenate([np.abs(own - np.median(own)) for own in several])
    worth = np.concatenate([np.full(len(own), 1 - 1 / len(own)) for own in several])
    whole = off / np.sqrt(worth)  # scaled to the distance from a known median
    # the median session is at 0
    typical = float(np.median(whole[whole > 0])) if whole.any() else 0.0
    is_near = whole <= _FAR * max(MAD_TO_SIGMA * typical, sqrt(usual))
    return _drawn(float(np.sum(off[is_near] ** 2)), float(np.sum(worth[is_near])), usual)


def _drawn(squares: float, degrees: float, usual: float) -> tuple[float, float]:
    """Return a standard deviation and its degrees of freedom, shrunk towards the usual variance."""
    variance = (squares + _PRIOR_DEGREES * usual) / (degrees + _PRIOR_DEGREES)
    return sqrt(variance), degrees + _PRIOR_DEGREES


def _of_median(count: int) -> float:
    """Return the variance of the median of `count` values, each with variance 1."""
    return (_OF_MEDIAN if count > 2 else 1.0) / count


def _beyond_band(one: SessionReadings, series: Sequence[_Series], prior: VariancePrior) -> str:
    """Return a fault if a session differs from the others, or within itself, by more than any
    valid session on its kind of device; else an empty text."""
    band = log(prior.canary_band)
    change = worst_change(one.readings, prior)
    own = str(change) if change is not None and abs(change.size) > band else ""
    return _shift(one, series, LEAST_FOR_BAND, band) or own


def _shift(
    one: SessionReadings,
    series: Sequence[_Series],
    sessions: int = LEAST_SESSIONS,
    least: float = 0.0,
) -> str:
    """Return a fault if a session differs from the others beyond chance, and by more than
    `least`; a series needs at least `sessions` sessions."""
    far = []
    for readings in series:
        size = readings.sizes.get(one.session)
        if size is None or len(readings.sizes) < sessions:
            continue
        share = 1 - _CANARY_HISTORY_FALSE_ALARMS / len(series)
        limit = student_t_factor(readings.degrees, share=share) * readings.scale
        if abs(size) > max(limit, least):
            far.append((abs(size), readings.name, exp(size)))
    if not far:
        return ""
    _, name, factor = max(far)
    return f"{name} took {factor:.3f} times as long as in other sessions of the stack"


def _noise(one: SessionReadings, usual: float, sessions: int) -> str:
    deviation = _deviation(one)
    if sessions < LEAST_SESSIONS or deviation <= max(_LEAST_NOISE, _NOISY * usual):
        return ""
    return f"repeats of its canaries scatter by {percent(deviation)}, and {percent(usual)} is usual"


def _deviation(one: SessionReadings) -> float:
    """Return the relative standard deviation of single repeats, of the canary with the largest
    one."""
    degrees, squares = Counter[str](), dict.fromkeys((r.case for r in one.readings), 0.0)
    for r in one.readings:
        degrees[r.case] += r.repeats - 1
        squares[r.case] += (r.repeats - 1) * r.deviation**2
    return max(sqrt(squares[case] / degrees[case]) for case in degrees)


def _halves(sizes: Floats, scale: float, degrees: float) -> tuple[float, float] | None:
    half = len(sizes) // 2
    if half < 2:
        return None
    earlier, later = float(np.median(sizes[:half])), float(np.median(sizes[-half:]))
    factor = student_t_factor(degrees, share=1 - _CANARY_HISTORY_FALSE_ALARMS)
    limit = factor * scale * sqrt(2 / half) * 1.25
    return (exp(earlier), exp(later)) if abs(later - earlier) > limit else None
