"""Whether a session stayed as fast as it began, by what its canaries took at its start, in its
middle and at its end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, fsum, log, sqrt
from statistics import fmean

from collector.measurement import CanaryReading, Measurement
from collector.quality.student import student_factor
from collector.quality.variance_prior import VariancePrior

# One false alarm in so many sessions in which nothing changed.
_FALSE_ALARMS = 0.005
# Repeats within a place may agree by chance, or by the ticks of a coarse clock.
_LEAST_DEVIATION = 0.002
DRIFTED = "the session drifted: "
WITHHELD = "canary band: "  # before the fault of a session of which nothing shows


def drift(readings: Sequence[CanaryReading], prior: VariancePrior) -> str:
    """Why a session's numbers are not of one state of its device; empty where they are.

    Two places differ if what a canary took there does, or what all of them did on average, beyond
    what repeats scatter, and what places may differ by anyway: as much as two sessions of that kind
    of device."""
    worst = worst_change(readings, prior)
    return f"{DRIFTED}{worst}" if worst else ""


def worst_change(readings: Sequence[CanaryReading], prior: VariancePrior) -> "Change | None":
    """The largest change within a session that no chance explains; None where there is none."""
    changes = list(_changes(readings))
    far = [change for change in changes if change.is_beyond(prior, len(changes))]
    return max(far, key=lambda change: abs(change.size), default=None)


def is_drifted(measurement: Measurement) -> bool:
    """Whether it has a number, of a session that did not stay as fast as it began."""
    return measurement.is_good and any(w.startswith(DRIFTED) for w in measurement.warnings)


def is_doubted(measurement: Measurement) -> bool:
    """Whether it has a number that another session may better: something else had the device, or
    the device was not the same throughout."""
    return measurement.is_disturbed or is_drifted(measurement)


@dataclass(frozen=True, slots=True)
class Change:
    """The same canaries at two places of a session; `variances` are those of one repeat of each,
    relative, with so many degrees of freedom."""

    first: Sequence[CanaryReading]
    second: Sequence[CanaryReading]
    variances: Sequence[float]
    degrees: int

    @property
    def size(self) -> float:
        """The logarithm of how many times as long the second place took."""
        return fmean(
            log(b.mean_us) - log(a.mean_us) for a, b in zip(self.first, self.second, strict=True)
        )

    def is_beyond(self, prior: VariancePrior, comparisons: int) -> bool:
        """Whether it is more than chance shows, where so many changes are looked at."""
        of_place = prior.ratio * prior.repeat_spread**2
        rows = zip(self.first, self.second, self.variances, strict=True)
        variance = fsum(v / a.repeats + v / b.repeats + 2 * of_place for a, b, v in rows)
        limit = student_factor(self.degrees, share=1 - _FALSE_ALARMS / comparisons)
        return abs(self.size) * len(self.first) > limit * sqrt(variance)

    def __str__(self) -> str:
        first, second = self.first[0], self.second[0]
        who = first.case if len(self.first) == 1 else "its canaries"
        return (
            f"{who} took {exp(self.size):.3f} times as long at its {second.place} as at its "
            f"{first.place}, {second.at_s - first.at_s:.0f} s before"
        )


def _changes(readings: Sequence[CanaryReading]) -> Iterator[Change]:
    """What there is to compare between any two places: each canary, and all of both."""
    by_case: dict[str, dict[str, CanaryReading]] = {}
    for reading in readings:
        by_case.setdefault(reading.case, {})[reading.place] = reading
    known = {case: _repeats_variance(list(told.values())) for case, told in by_case.items()}
    for one, other in combinations(dict.fromkeys(r.place for r in readings), 2):
        cases = [case for case, told in by_case.items() if one in told and other in told]
        for group in [[case] for case in cases] + ([cases] if len(cases) > 1 else []):
            yield Change(
                [by_case[case][one] for case in group],
                [by_case[case][other] for case in group],
                [known[case][0] for case in group],
                sum(known[case][1] for case in group),
            )


def _repeats_variance(readings: Sequence[CanaryReading]) -> tuple[float, int]:
    """The relative variance of one repeat, as all places tell it, and its degrees of freedom."""
    degrees = sum(reading.repeats - 1 for reading in readings)
    squares = fsum((reading.repeats - 1) * reading.deviation**2 for reading in readings)
    return max(squares / degrees, _LEAST_DEVIATION**2), degrees
