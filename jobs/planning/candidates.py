"""Which cases of the sources a plan takes up, and what each costs.

A case that occurs in several sources is one candidate: the first source's spelling stands, the
occurrences of all are counted, since they are the time that the case stands for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import fsum
from sys import intern

from collector.codec.errors import BadInput
from collector.comm.bench_plan import Mode, window_s
from collector.comm.moe.moe_plan import modes_of
from collector.database.layout import AVERAGE_DURATION
from collector.database.published import KnownInterval
from collector.model.case import Case
from collector.model.measurement import CONTEXT, Outcome
from collector.model.plan import Limits, MeasureSettings, PlannedSource, devices_for
from collector.model.record import CaseRecord, ProfileStatistics
from collector.ops.context import context_of
from collector.ops.refusals import NO_PLACE, UNFORESEEN, FindOperator, Refusal, refusal
from collector.ops.registry import find
from collector.ops.spec import OpSpec
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.gangs import ROUNDS, is_of_gangs, ranks_of, routed_call
from collector.singlehost.version_files import duration_us
from jobs.planning.forecast import (
    ANSWER_S,
    FLUSH_BYTES,
    Peaks,
    predict,
    predict_collective,
    predict_routed,
)

# What a case stands for in the sources of a campaign: plans and summaries count by it.


@dataclass(frozen=True, slots=True)
class Weight:
    """`rows` of the sources are this case, and took `time_us` in the profiles, whatever their
    stacks. Of an `in_tree` case a tree has a duration of its own: it needs no other."""

    rows: int
    time_us: float
    in_tree: bool


def weigh(records: Sequence[CaseRecord]) -> Weight:
    """The weight of a case, of all its records in all sources."""
    profiles = [record.profile for record in records if record.profile is not None]
    return Weight(
        rows=sum(profile.count for profile in profiles) + len(records) - len(profiles),
        time_us=fsum(profile.total_us for profile in profiles),
        in_tree=any(duration_us(record.extra, AVERAGE_DURATION) for record in records),
    )


SourceRecords = tuple[PlannedSource, tuple[CaseRecord, ...]]


@dataclass(frozen=True, slots=True)
class HeadAnswer:
    """What the database's head holds of a case on this stack. `interval` is None where nobody asked
    for it, or where there is none; `is_doubted` where the number is of a session that its canaries
    make doubtful."""

    is_good: bool
    mean_us: float | None
    interval: KnownInterval | None = None
    is_doubted: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distinct case of the sources. `own_profile` is what a profile of the plan's own stack says
    of it."""

    record: CaseRecord
    own_profile: ProfileStatistics | None
    weight: Weight

    @property
    def planned_record(self) -> CaseRecord:
        """The record as a shard holds it: numbers of another stack stay in their source, so that
        what a shard carries may stand in the plan's version."""
        return replace(self.record, profile=self.own_profile)


@dataclass(frozen=True, slots=True)
class PricedCase:
    """A candidate with its forecast. `refusal` says why no device will run it; then it is
    answered at once, and alone in its group. One of several `ranks` needs them all at once.
    `launch_s` is the forecast of a launch; 0 where there is none."""

    candidate: Candidate
    cost_s: float
    group: str
    refusal: str | None
    ranks: int = 1
    launch_s: float = 0.0


def distinct_cases(sources: Iterable[SourceRecords]) -> list[Candidate]:
    """The cases of all sources, each once, in the order of their ids."""
    found: dict[str, list[tuple[CaseRecord, bool]]] = {}
    for source, records in sources:
        for record in records:
            found.setdefault(record.case_id, []).append((record, source.same_stack))
    return [_candidate(found.pop(case_id)) for case_id in sorted(found)]


def only_operators(
    candidates: Sequence[Candidate], operators: frozenset[str] | None
) -> list[Candidate]:
    """The candidates of these kernel types. BadInput for a type that no source has."""
    if operators is None:
        return list(candidates)
    known = {candidate.record.case.kernel_type for candidate in candidates}
    for name in sorted(operators - known):
        # Of those that have a declaration: other names are known to who may read the sources.
        close = get_close_matches(name, sorted(filter(find, known)), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise BadInput(f"operators: no source contains {name!r}{hint}")
    return [c for c in candidates if c.record.case.kernel_type in operators]


def still_missing(
    candidates: Iterable[Candidate], answered: Mapping[str, HeadAnswer], *, retry_failed: bool
) -> list[Candidate]:
    """The candidates without an answer, or with a doubted one; a failure is one, unless it shall be
    tried again."""

    def is_missing(candidate: Candidate) -> bool:
        if candidate.weight.in_tree:
            return False
        answer = answered.get(candidate.record.case_id)
        return answer is None or answer.is_doubted or (retry_failed and not answer.is_good)

    return [candidate for candidate in candidates if is_missing(candidate)]


def price(
    candidate: Candidate,
    find: FindOperator,
    peaks: Peaks,
    measure: MeasureSettings,
    limits: Limits,
    answer: HeadAnswer | None,
    backend: str,
    devices: int = 1,
) -> PricedCase:
    """The forecast of one candidate on so many devices; never more than the limit after which it is
    given up."""
    case = candidate.record.case
    own = candidate.own_profile
    last_us = (answer.mean_us if answer else None) or (own.mean_us if own else None)
    no = refusal_in_plan(case, find, backend, devices, measure.cache)
    if no is not None:
        return PricedCase(candidate, ANSWER_S, candidate.record.case_id, no.why)
    if is_of_gangs(case):
        return _of_gang(candidate, peaks, measure, limits, last_us, backend)
    op = find(case.kernel_type)
    if op is None:
        return PricedCase(candidate, ANSWER_S, candidate.record.case_id, None)
    try:
        before = _before(candidate.record, find, backend) if measure.cache == CONTEXT else ()
        forecast = predict(case, op, peaks, measure, last_us, before)
        group = intern(f"{case.kernel_type}|{op.group(case)}")
    except UNFORESEEN:
        return PricedCase(
            candidate, min(measure.budget_s, limits.case_s), candidate.record.case_id, None
        )
    cost_s = min(forecast.total_s, limits.case_s)
    return PricedCase(candidate, cost_s, group, None, launch_s=forecast.launch_s)


def refusal_in_plan(
    case: Case, find: FindOperator, backend: str, devices: int, cache: str
) -> Refusal | None:
    """Why a plan for so many devices answers a case without any; None where it is measured."""
    no = refusal(case, find, backend)
    if no is not None or not is_of_gangs(case):
        return no
    if devices_for(ranks_of(case), backend) > devices or cache != "warm":
        return Refusal(Outcome.UNSUPPORTED, NO_PLACE, NO_PLACE)
    return None


def _of_gang(
    candidate: Candidate,
    peaks: Peaks,
    measure: MeasureSettings,
    limits: Limits,
    last_us: float | None,
    backend: str,
) -> PricedCase:
    """Those that share ranks, their places and their environment share a start of the ranks."""
    case = candidate.record.case
    if is_collective(case.kernel_type):
        told = collective_case_of(case)
        forecast = predict_collective(told.collective, peaks, measure, last_us)
        mode, group = told.mode, f"{told.grid}|{told.mode}|{told.environment}"
    else:
        forecast = predict_routed(routed_call(case), peaks, measure, last_us)
        mode, group = modes_of(backend)[0], case.kernel_type
    windows_s = ROUNDS * window_s(backend) if mode == Mode.KERNEL else 0.0
    cost_s = min(forecast.total_s + windows_s, limits.case_s)
    return PricedCase(candidate, cost_s, group, None, ranks_of(case), forecast.launch_s)


def _candidate(found: Sequence[tuple[CaseRecord, bool]]) -> Candidate:
    own = (record.profile for record, is_own in found if is_own and record.profile is not None)
    records = [record for record, _ in found]
    first = records[0]
    before = next((r.before for r in records if r.before), ())  # of several, the first that tells
    if before and not first.before:
        first = replace(first, before=before)
    return Candidate(first, next(own, None), weigh(records))


def _before(
    record: CaseRecord, find: FindOperator, backend: str
) -> tuple[tuple[Case, OpSpec], ...]:
    """What runs before a case, where no device has a larger cache."""
    found = context_of(record.before, find, backend, FLUSH_BYTES)
    return tuple((one.record.case, one.op) for one in found.neighbours)
