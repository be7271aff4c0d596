"""The cases that a version lacks, in the order of their worth per device time. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import fsum

from collector.model.plan import MeasureSettings, devices_for
from collector.model.record import CaseRecord
from collector.model.stack import Stack, backend_of
from collector.ops.own import find_operator
from collector.ops.refusals import DECLARATION_ERRORS, FindOperator, refusal
from collector.ranks.gangs import is_of_gangs
from jobs.campaign.campaign_file import Campaign
from jobs.planning import forecast
from jobs.planning.candidates import Candidate, price, weigh
from jobs.planning.coverage import CoverageStatus, CoveredCase

# The unknown fraction of a case's time: all of it, or the part that neighbours leave open.
_UNCERTAIN: Mapping[CoverageStatus, float] = {
    CoverageStatus.MISSING: 1.0,
    CoverageStatus.IMPORTED: 0.25,
    CoverageStatus.OUTSIDE: 1.0,
    CoverageStatus.BETWEEN: 0.25,
}


@dataclass(frozen=True, slots=True)
class Gain:
    """A case without a duration.

    It has its share of the total time, and the device-seconds to measure it, including its share of
    a session's start."""

    record: CaseRecord
    share: float
    device_s: float


@dataclass(frozen=True, slots=True)
class WorthPoint:
    """A point: after `device_h`, `cases` more cases are measured, and `share` of all time."""

    device_h: float
    cases: int
    share: float


def ranked_gains(
    found: Sequence[CoveredCase], campaign: Campaign, peaks: forecast.Peaks, find: FindOperator
) -> tuple[Gain, ...]:
    """Return the measurable cases without a duration, most unknown time per device-second first.

    Cases that failed and cases that no device runs are left out; the campaign says how to measure.
    The first case also pays for the start of a session, which is needed for any number of cases."""
    whole_us = fsum(one.workload.time_us for one in found) or 1.0
    device_s = device_seconds(campaign, peaks, find)

    def gain_of(one: CoveredCase) -> Gain | None:
        record = one.workload.record
        cost_s = device_s(record)
        share = one.workload.time_us / whole_us
        return None if cost_s is None else Gain(record, share, cost_s)

    known = [
        (gain.share * _UNCERTAIN[one.status] / gain.device_s, gain)
        for one in found
        if one.status in _UNCERTAIN and (gain := gain_of(one)) is not None
    ]
    ranked = [gain for _, gain in sorted(known, key=lambda one: (-one[0], one[1].record.case_id))]
    start_s = session_start_s(campaign, peaks, find)
    begun = (replace(gain, device_s=gain.device_s + start_s) for gain in ranked[:1])
    return (*begun, *ranked[1:])


def device_seconds(
    campaign: Campaign, peaks: forecast.Peaks, find: FindOperator
) -> Callable[[CaseRecord], float | None]:
    """Return the forecast of the device-seconds that a case takes in a campaign, with its share of
    further sessions' starts; None for a case that no device runs."""
    cost = forecast.session_cost(campaign.backend, find, peaks, campaign.measure)
    session_s = campaign.shards.session_s
    begun_share = 1 + cost.of_sessions(session_s, session_s) / session_s

    def seconds_of(record: CaseRecord) -> float | None:
        priced = price(Candidate(record, None, weigh([record])), find, peaks, campaign)
        if priced.refusal is not None:
            return None
        return priced.cost_s * begun_share * devices_for(priced.ranks, campaign.backend)

    return seconds_of


def session_start_s(campaign: Campaign, peaks: forecast.Peaks, find: FindOperator) -> float:
    """Return the device-seconds of the first session's start, whatever it measures."""
    return forecast.session_cost(campaign.backend, find, peaks, campaign.measure).start_s


@dataclass(frozen=True, slots=True)
class SessionForecast:
    """One more session of a measured case: the device-seconds of the case, and of the start of a
    session, which the cases of a campaign share."""

    case_s: float
    start_s: float


def session_forecast(record: CaseRecord, mean_us: float, device: str) -> SessionForecast | None:
    """Return the forecast of one more session, with the usual settings of a campaign. None if the
    operator does not launch the case on one device of this kind."""
    backend, case, op = backend_of(device), record.case, find_operator(record.kernel_type)
    if op is None or is_of_gangs(case) or refusal(case, find_operator, backend) is not None:
        return None
    peaks = forecast.peaks_of(Stack(device=device, torch=""))
    measure = MeasureSettings()
    try:
        case_s = forecast.predict(case, op, peaks, measure, mean_us).total_s
    except DECLARATION_ERRORS:
        return None
    return SessionForecast(
        case_s, forecast.session_cost(backend, find_operator, peaks, measure).start_s
    )


def curve(found: Sequence[CoveredCase], ordered: Sequence[Gain]) -> tuple[WorthPoint, ...]:
    """Return the total after each gain, in their order, starting from the point without any."""
    whole_us = fsum(one.workload.time_us for one in found) or 1.0
    exact_us = fsum(one.workload.time_us for one in found if one.status is CoverageStatus.EXACT)
    hours = accumulate(gain.device_s / 3600 for gain in ordered)
    shares = accumulate((gain.share for gain in ordered), initial=exact_us / whole_us)
    first = WorthPoint(0.0, 0, next(shares))
    points = enumerate(zip(hours, shares, strict=True), start=1)
    return (first, *(WorthPoint(hour, count, share) for count, (hour, share) in points))


def within(ordered: Sequence[Gain], budget_h: float) -> tuple[Gain, ...]:
    """Return the first gains that the budget of device-hours pays for together."""
    hours = accumulate(gain.device_s / 3600 for gain in ordered)
    return tuple(gain for gain, hour in zip(ordered, hours, strict=True) if hour <= budget_h)
