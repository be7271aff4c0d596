"""The cases that a version lacks, in the order of their worth per device time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from math import fsum

from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.plan import MeasureSettings, devices_for
from collector.model.record import CaseRecord
from collector.ops.refusals import UNFORESEEN, FindOperator
from collector.ops.registry import find
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.gangs import is_of_gangs, routed_call
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.source_kinds import ModelSource, Source
from jobs.planning.candidates import Candidate, price, weigh
from jobs.planning.coverage import Covered, Standing, Wanted
from jobs.planning.forecast import (
    Peaks,
    SessionCost,
    predict,
    predict_collective,
    predict_routed,
    session_cost,
)
from jobs.planning.generated_sources import model_records
from jobs.planning.sources import completed_records, load_sources

# The unknown fraction of a case's time: all of it, or the part that neighbours leave open.
_UNCERTAIN: Mapping[Standing, float] = {
    Standing.MISSING: 1.0,
    Standing.OUTSIDE: 1.0,
    Standing.BETWEEN: 0.25,
}


@dataclass(frozen=True, slots=True)
class Gain:
    """A case without a duration.

    It has its share of the total time, and the device-seconds to measure it, including its share of
    a session's start.
    """

    record: CaseRecord
    share: float
    device_s: float


@dataclass(frozen=True, slots=True)
class Point:
    """A point: after `device_h`, `cases` more cases are measured, and `share` of all time."""

    device_h: float
    cases: int
    share: float


def gains(
    found: Sequence[Covered], campaign: Campaign, peaks: Peaks, find: FindOperator
) -> tuple[Gain, ...]:
    """Return the measurable cases without a duration, most unknown time per device-second first.

    Cases that failed and cases that no device runs are left out; the campaign says how to measure.
    The first case also pays for the start of a session, which is needed for any number of cases.
    """
    whole_us = fsum(one.wanted.time_us for one in found) or 1.0
    cost = session_cost(campaign.backend, find, peaks, campaign.measure)
    known = [
        (gain.share * _UNCERTAIN[one.standing] / gain.device_s, gain)
        for one in found
        if one.standing in _UNCERTAIN
        and (gain := _gain(one, whole_us, campaign, peaks, find, cost)) is not None
    ]
    ranked = [gain for _, gain in sorted(known, key=lambda one: (-one[0], one[1].record.case_id))]
    begun = (replace(gain, device_s=gain.device_s + cost.start_s) for gain in ranked[:1])
    return (*begun, *ranked[1:])


def curve(found: Sequence[Covered], ordered: Sequence[Gain]) -> tuple[Point, ...]:
    """Return the total after each gain, in their order, starting from the point without any."""
    whole_us = fsum(one.wanted.time_us for one in found) or 1.0
    exact_us = fsum(one.wanted.time_us for one in found if one.standing is Standing.EXACT)
    hours = accumulate(gain.device_s / 3600 for gain in ordered)
    shares = accumulate((gain.share for gain in ordered), initial=exact_us / whole_us)
    first = Point(0.0, 0, next(shares))
    points = enumerate(zip(hours, shares, strict=True), start=1)
    return (first, *(Point(hour, count, share) for count, (hour, share) in points))


def within(ordered: Sequence[Gain], budget_h: float) -> tuple[Gain, ...]:
    """Return the first gains that the budget of device-hours pays for together."""
    hours = accumulate(gain.device_s / 3600 for gain in ordered)
    return tuple(gain for gain, hour in zip(ordered, hours, strict=True) if hour <= budget_h)


def _gain(
    one: Covered,
    whole_us: float,
    campaign: Campaign,
    peaks: Peaks,
    find: FindOperator,
    cost: SessionCost,
) -> Gain | None:
    record = one.wanted.record
    priced = price(
        Candidate(record, None, weigh([record])),
        find,
        peaks,
        campaign.measure,
        campaign.limits,
        None,
        campaign.backend,
        campaign.devices,
    )
    if priced.refusal is not None:
        return None
    session_s = campaign.shards.session_s
    begun = 1 + cost.of_sessions(session_s, session_s) / session_s
    device_s = priced.cost_s * begun * devices_for(priced.ranks, campaign.backend)
    return Gain(record, one.wanted.time_us / whole_us, device_s)


# The launches of a campaign's sources, their counts and their time: the base of coverage.


@dataclass(frozen=True, slots=True)
class Launched:
    """Each case of the sources once, by first occurrence, and the communication time."""

    cases: tuple[Wanted, ...]
    communication_us: float


def launched(campaign: Campaign, store: Store, peaks: Peaks) -> Launched:
    """Return the launches of a campaign's sources."""
    sources = [_launches(source, campaign, store) for source in campaign.sources]
    found: dict[str, Wanted] = {}
    for record, launches in chain.from_iterable(source.records for source in sources):
        case_id = record.case_id
        time_us = record.profile.total_us if record.profile else 0.0
        if not time_us:
            time_us = launches * roofline_us(record.case, peaks)
        known = found.get(case_id, Wanted(record, 0, 0.0))
        found[case_id] = replace(
            known, launches=known.launches + launches, time_us=known.time_us + time_us
        )
    return Launched(tuple(found.values()), fsum(source.communication_us for source in sources))


def roofline_us(case: Case, peaks: Peaks) -> float:
    """Return the duration of a launch at the device's rates; 0 if its work is unknown."""
    try:
        return 1e6 * _roofline_s(case, peaks)
    except (BadInput, *UNFORESEEN):
        return 0.0


def _roofline_s(case: Case, peaks: Peaks) -> float:
    settings = MeasureSettings()
    if is_collective(case.kernel_type):
        told = collective_case_of(case)
        return predict_collective(told.collective, peaks, settings, None).launch_s
    if is_of_gangs(case):
        return predict_routed(routed_call(case), peaks, settings, None).launch_s
    op = find(case.kernel_type)
    if op is None or case.inputs is None:
        return 0.0
    return predict(case, op, peaks, settings, None).launch_s


@dataclass(frozen=True, slots=True)
class _Source:
    """How often one source launches each of its records."""

    records: tuple[tuple[CaseRecord, int], ...]
    communication_us: float = 0.0


def _launches(source: Source, campaign: Campaign, store: Store) -> _Source:
    if isinstance(source, ModelSource):
        found = model_records(source, campaign.backend)
        records = completed_records(found.records)
        return _Source(tuple(zip(records, found.launches, strict=True)))
    (loaded,) = load_sources(replace(campaign, sources=(source,)), store)
    counts = ((r, r.profile.count if r.profile else 1) for r in loaded.records)
    return _Source(tuple(counts), loaded.planned.communication_us)
