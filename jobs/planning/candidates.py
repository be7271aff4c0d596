"""The cases of the sources that a plan selects, and the cost of each.

A case that occurs in several sources is one candidate. It is written as in the first source, and
the occurrences in all sources are counted, because together they are the time of the case.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from sys import intern
from typing import Protocol, TypeVar

from collector.codec.errors import BadInput
from collector.codec.text import did_you_mean
from collector.comm.bench_plan import Mode, window_s
from collector.comm.moe.moe_plan import modes_of
from collector.database.intervals import CaseInterval
from collector.database.layout import AVERAGE_DURATION
from collector.database.tree import duration_us
from collector.model.case import Case
from collector.model.demand import Urgency, urgency_of
from collector.model.measurement import CONTEXT, Outcome
from collector.model.plan import PlannedSource, UpgradeFrom, devices_for
from collector.model.record import CaseRecord, ProfileStatistics
from collector.ops.context import context_of
from collector.ops.own import find_operator, own_operators
from collector.ops.refusals import (
    DECLARATION_ERRORS,
    WRONG_NUMBER_OF_RANKS,
    FindOperator,
    Refusal,
    refusal,
    refusal_of_device,
)
from collector.ops.spec import OpSpec
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.gangs import ROUNDS, is_of_gangs, ranks_needed, routed_call
from jobs.campaign.campaign_file import Campaign
from jobs.planning.forecast import (
    FLUSH_BYTES,
    REFUSED_CASE_S,
    Peaks,
    predict,
    predict_collective,
    predict_routed,
)

# The weight of a case in the sources of a campaign: plans and summaries count by it.


@dataclass(frozen=True, slots=True)
class Weight:
    """The share of the sources that is one case.

    `rows` rows of the sources are this case, and took `time_us` in the profiles, on any stack. An
    `in_tree` case already has a duration in a tree and needs no other. `urgency` is the greatest of
    the queries that request it."""

    rows: int
    time_us: float
    in_tree: bool
    urgency: Urgency | None = None


def weigh(records: Sequence[CaseRecord]) -> Weight:
    profiles = [record.profile for record in records if record.profile is not None]
    return Weight(
        rows=sum(profile.count for profile in profiles) + len(records) - len(profiles),
        time_us=fsum(profile.total_us for profile in profiles),
        in_tree=any(duration_us(record.extra, AVERAGE_DURATION) for record in records),
        urgency=min(filter(None, map(urgency_of, records)), key=list(Urgency).index, default=None),
    )


SourceRecords = tuple[PlannedSource, tuple[CaseRecord, ...]]


@dataclass(frozen=True, slots=True)
class HeadResult:
    """The result of a case in the database's head, on this stack.

    `interval` is None if it was not requested or does not exist. `is_suspect` is set if the number
    is from a session that its canaries make suspect."""

    is_good: bool
    mean_us: float | None
    interval: CaseInterval | None = None
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class OldDurations:
    """The intervals that the version directory of an older stack shows, by case."""

    source: UpgradeFrom
    stack_id: str
    intervals: Mapping[str, CaseInterval]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distinct case of the sources.

    `own_profile` is the timing in a profile of the plan's own stack."""

    record: CaseRecord
    own_profile: ProfileStatistics | None
    weight: Weight

    @property
    def planned_record(self) -> CaseRecord:
        """Return the record for a shard.

        Numbers of other stacks are removed, so that the content of a shard may go into the plan's
        version."""
        return replace(self.record, profile=self.own_profile)


@dataclass(frozen=True, slots=True)
class PricedCase:
    """A candidate with its forecast.

    `refusal` is the reason why no device runs the case; such a case gets its outcome at once and is
    alone in its group. A case with several `ranks` needs them all at the same time. `launch_s` is
    the forecast of one launch, or 0 if there is none."""

    candidate: Candidate
    cost_s: float
    group: str
    refusal: str | None
    ranks: int = 1
    launch_s: float = 0.0


def distinct_cases(sources: Iterable[SourceRecords]) -> list[Candidate]:
    """Return the cases of all sources, each once, ordered by case id."""
    found: dict[str, list[tuple[CaseRecord, bool]]] = {}
    for source, records in sources:
        for record in records:
            found.setdefault(record.case_id, []).append((record, source.same_stack))
    return [_candidate(found.pop(case_id)) for case_id in sorted(found)]


class _HasRecord(Protocol):
    @property
    def record(self) -> CaseRecord: ...


_OfCase = TypeVar("_OfCase", bound=_HasRecord)


def only_operators(
    candidates: Sequence[_OfCase], operators: frozenset[str] | None
) -> list[_OfCase]:
    """Return the candidates of these kernel types. Raise BadInput for a type that no source has."""
    if operators is None:
        return list(candidates)
    check_kernel_types((candidate.record for candidate in candidates), operators)
    return [c for c in candidates if c.record.case.kernel_type in operators]


def check_kernel_types(records: Iterable[CaseRecord], operators: frozenset[str] | None) -> None:
    """Raise BadInput for a kernel type that none of the records of the sources has. A file of
    operators may declare more than the sources have."""
    if operators is None:
        return
    known = {record.case.kernel_type for record in records}
    for name in sorted(operators - known - {op.kernel for op in own_operators()}):
        # Suggest only declared operators: other names may be visible only to readers of the
        # sources.
        hint = did_you_mean(name, sorted(filter(find_operator, known)))
        raise BadInput(f"operators: no source contains {name!r}{hint}")


def cases_to_measure(
    candidates: Iterable[Candidate], head_results: Mapping[str, HeadResult], *, retry_failed: bool
) -> list[Candidate]:
    """Return the candidates that have no result or a suspect one.

    A failure is a result unless `retry_failed` is set."""

    def is_missing(candidate: Candidate) -> bool:
        if candidate.weight.in_tree:
            return False
        result = head_results.get(candidate.record.case_id)
        return result is None or result.is_suspect or (retry_failed and not result.is_good)

    return [candidate for candidate in candidates if is_missing(candidate)]


def price(
    candidate: Candidate,
    find: FindOperator,
    peaks: Peaks,
    campaign: Campaign,
    result: HeadResult | None = None,
) -> PricedCase:
    """Return the forecast of one candidate in a plan of the campaign.

    The forecast never exceeds the limit after which the case is given up."""
    case, own = candidate.record.case, candidate.own_profile
    measure, backend, most_s = campaign.measure, campaign.backend, campaign.limits.case_s
    last_us = (result.mean_us if result else None) or (own.mean_us if own else None)
    place = (backend, campaign.devices, measure.cache, campaign.device)
    no = refusal_in_plan(case, find, *place)
    if no is not None:
        return PricedCase(candidate, REFUSED_CASE_S, candidate.record.case_id, no.why)
    if is_of_gangs(case):
        return _of_gang(candidate, peaks, campaign, last_us)
    op = find(case.kernel_type)
    if op is None:
        return PricedCase(candidate, REFUSED_CASE_S, candidate.record.case_id, None)
    try:
        before = _before(candidate.record, find, backend) if measure.cache == CONTEXT else ()
        forecast = predict(case, op, peaks, measure, last_us, before)
        group = intern(f"{case.kernel_type}|{op.group(case)}")
    except DECLARATION_ERRORS:
        cost_s = min(measure.budget_s, most_s)
        return PricedCase(candidate, cost_s, candidate.record.case_id, None)
    cost_s = min(forecast.total_s, most_s)
    return PricedCase(candidate, cost_s, group, None, launch_s=forecast.launch_s)


def refusal_in_plan(
    case: Case,
    find: FindOperator,
    backend: str,
    devices: int,
    cache: str,
    device: str,
) -> Refusal | None:
    """Return why a plan for `devices` devices of a name refuses a case; None if it is measured."""
    no = refusal(case, find, backend) or refusal_of_device(case, device)
    if no is not None or not is_of_gangs(case):
        return no
    if devices_for(ranks_needed(case), backend) > devices or cache != "warm":
        return Refusal(Outcome.UNSUPPORTED, WRONG_NUMBER_OF_RANKS, WRONG_NUMBER_OF_RANKS)
    return None


def _of_gang(
    candidate: Candidate, peaks: Peaks, campaign: Campaign, last_us: float | None
) -> PricedCase:
    """Price a case of several ranks.

    Cases with the same ranks, placement and environment share one start of the ranks."""
    case, measure, backend = candidate.record.case, campaign.measure, campaign.backend
    if is_collective(case.kernel_type):
        known = collective_case_of(case)
        forecast = predict_collective(known.collective, peaks, measure, last_us)
        mode, group = known.mode, f"{known.grid}|{known.mode}|{known.environment}"
    else:
        forecast = predict_routed(routed_call(case), peaks, measure, last_us)
        mode, group = modes_of(backend)[0], case.kernel_type
    windows_s = ROUNDS * window_s(backend) if mode == Mode.KERNEL else 0.0
    cost_s = min(forecast.total_s + windows_s, campaign.limits.case_s)
    return PricedCase(candidate, cost_s, group, None, ranks_needed(case), forecast.launch_s)


def _candidate(found: Sequence[tuple[CaseRecord, bool]]) -> Candidate:
    own = (record.profile for record, is_own in found if is_own and record.profile is not None)
    records = [record for record, _ in found]
    first = records[0]
    before = next((r.before for r in records if r.before), ())  # use the first that has any
    if before and not first.before:
        first = replace(first, before=before)
    return Candidate(first, next(own, None), weigh(records))


def _before(
    record: CaseRecord, find: FindOperator, backend: str
) -> tuple[tuple[Case, OpSpec], ...]:
    found = context_of(record.before, find, backend, FLUSH_BYTES)
    return tuple((one.record.case, one.op) for one in found.neighbours)
