"""A workload: the cases that a campaign's sources launch, how often, and how long they take."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from math import fsum

from collector.codec.errors import BadInput, CaseRejected
from collector.model.case import Case
from collector.model.plan import MeasureSettings
from collector.model.record import CaseRecord
from collector.ops.own import find_operator
from collector.ops.refusals import DECLARATION_ERRORS
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.gangs import is_of_gangs, routed_call
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.source_kinds import ModelSource, ProfileSource, RecordingSource, Source
from jobs.planning.candidates import only_operators
from jobs.planning.forecast import Peaks, predict, predict_collective, predict_routed
from jobs.planning.generated_sources import messages_in_situ, model_records, recorded_cases
from jobs.planning.sources import completed_records, load_sources


@dataclass(frozen=True, slots=True)
class WorkloadCase:
    """A case with its launches and their total time, from its profile or the device's roofline."""

    record: CaseRecord
    launches: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What profiles, models or a campaign's sources launch: each case once, in the order of first
    occurrence, and the communication time that no case contains."""

    cases: tuple[WorkloadCase, ...]
    communication_us: float


def workload_of(
    campaign: Campaign, store: Store, peaks: Peaks, *, in_situ: bool = False
) -> Workload:
    """Return the workload of a campaign's sources: profiles, models, recordings and others. If the
    campaign names its operators, it is that of these alone.

    With `in_situ`, the messages of a profile have their durations in its run, with all waiting."""
    sources = [_launches(source, campaign, store, in_situ) for source in campaign.sources]
    found: dict[str, WorkloadCase] = {}
    for record, launches in chain.from_iterable(counts for counts, _ in sources):
        case_id = record.case_id
        time_us = record.profile.total_us if record.profile else 0.0
        if not time_us:
            time_us = launches * roofline_us(record.case, peaks)
        known = found.get(case_id, WorkloadCase(record, 0, 0.0))
        found[case_id] = replace(
            known, launches=known.launches + launches, time_us=known.time_us + time_us
        )
    cases = tuple(only_operators(tuple(found.values()), campaign.operators))
    communication_us = fsum(took_us for _, took_us in sources)
    return Workload(cases, communication_us if campaign.operators is None else 0.0)


def roofline_us(case: Case, peaks: Peaks) -> float:
    """Return the duration of a launch at the device's rates; 0 if its work is unknown."""
    try:
        return 1e6 * _roofline_s(case, peaks)
    except (BadInput, CaseRejected, *DECLARATION_ERRORS):
        return 0.0


def _roofline_s(case: Case, peaks: Peaks) -> float:
    settings = MeasureSettings()
    if is_collective(case.kernel_type):
        recorded = collective_case_of(case)
        return predict_collective(recorded.collective, peaks, settings, None).launch_s
    if is_of_gangs(case):
        return predict_routed(routed_call(case), peaks, settings, None).launch_s
    op = find_operator(case.kernel_type)
    if op is None or case.inputs is None:
        return 0.0
    return predict(case, op, peaks, settings, None).launch_s


def _launches(
    source: Source, campaign: Campaign, store: Store, in_situ: bool
) -> tuple[Iterable[tuple[CaseRecord, int]], float]:
    """Return how often a source launches each of its records, and its communication time."""
    if isinstance(source, ModelSource):
        found = model_records(source, campaign.backend)
        records = completed_records(found.records)
        return zip(records, found.launches, strict=True), 0.0
    if isinstance(source, RecordingSource):
        recorded = recorded_cases(source, campaign.backend)
        return zip(completed_records(recorded.records), recorded.launches, strict=True), 0.0
    messages: tuple[CaseRecord, ...] = ()
    if in_situ and isinstance(source, ProfileSource) and source.collectives is not None:
        messages = messages_in_situ(source.path, source.collectives, campaign.backend)
        source = replace(source, collectives=None)
    (loaded,) = load_sources(replace(campaign, sources=(source,)), store)
    records = (*loaded.records, *messages)
    counts = ((r, r.profile.count if r.profile else 1) for r in records)
    return counts, loaded.planned.communication_us
