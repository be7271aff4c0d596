"""What a campaign's sources launch, how often, and how long that takes: what coverage is of."""

from collections.abc import Iterator
from dataclasses import replace

from collector.case import Case
from collector.collective_case import collective_case, is_collective
from collector.errors import BadInput
from collector.gang_case import is_of_gangs, routed_call
from collector.ops.refusals import UNFORESEEN
from collector.ops.registry import find
from collector.plan import MeasureSettings
from collector.record import CaseRecord
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.model_source import ModelSource
from jobs.planning.coverage import Wanted
from jobs.planning.forecast import Peaks, predict, predict_collective, predict_routed
from jobs.planning.model_sources import model_records
from jobs.planning.sources import completed_records, load_sources


def wanted_cases(campaign: Campaign, store: Store, peaks: Peaks) -> tuple[Wanted, ...]:
    """Each case of the sources once, in the order of their first occurrence."""
    found: dict[str, Wanted] = {}
    for record, launches in _launches(campaign, store):
        case_id = record.case_id
        time_us = record.profile.total_us if record.profile else 0.0
        if not time_us:
            time_us = launches * roofline_us(record.case, peaks)
        known = found.get(case_id, Wanted(record, 0, 0.0))
        found[case_id] = replace(
            known, launches=known.launches + launches, time_us=known.time_us + time_us
        )
    return tuple(found.values())


def roofline_us(case: Case, peaks: Peaks) -> float:
    """What a launch takes at the rates of the device; 0 where nobody knows its work."""
    try:
        return 1e6 * _roofline_s(case, peaks)
    except (BadInput, *UNFORESEEN):
        return 0.0


def _roofline_s(case: Case, peaks: Peaks) -> float:
    settings = MeasureSettings()
    if is_collective(case.kernel_type):
        told = collective_case(case)
        return predict_collective(told.collective, peaks, settings, None).launch_s
    if is_of_gangs(case):
        return predict_routed(routed_call(case), peaks, settings, None).launch_s
    op = find(case.kernel_type)
    if op is None or case.inputs is None:
        return 0.0
    return predict(case, op, peaks, settings, None).launch_s


def _launches(campaign: Campaign, store: Store) -> Iterator[tuple[CaseRecord, int]]:
    for source in campaign.sources:
        if isinstance(source, ModelSource):
            found = model_records(source, campaign.backend)
            yield from zip(completed_records(found.records), found.launches, strict=True)
            continue
        (loaded,) = load_sources(replace(campaign, sources=(source,)), store)
        for record in loaded.records:
            yield record, record.profile.count if record.profile else 1
