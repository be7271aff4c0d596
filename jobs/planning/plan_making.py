"""From the cases of a campaign to a plan: equal shards, and a forecast before anything starts.

Pure: no store, no clock. The same request gives the same plan and the same tables, byte for byte,
so that whoever plans again after a crash writes what is already there.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import fsum, inf

from collector.canonical import sha256_hex, short_hash
from collector.ops.refusals import FindOperator
from collector.plan import (
    Forecast,
    Plan,
    PlannedShard,
    PlannedSource,
    devices_for,
)
from collector.stack import Stack
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.quality import QualitySettings
from jobs.planning.candidates import (
    Candidate,
    HeadAnswer,
    PricedCase,
    SourceRecords,
    distinct_cases,
    only_operators,
    price,
    still_missing,
)
from jobs.planning.density import Spared, spared
from jobs.planning.elsewhere import within_their_time
from jobs.planning.forecast import Peaks, SessionCost, peaks_of, session_cost
from jobs.planning.gaps import Shares, refused_cases, shares
from jobs.planning.precision import worth_their_time
from jobs.planning.repeats import repeated_shards
from jobs.planning.shard_cutting import (
    GANG_COST,
    CutShard,
    cut_elsewhere,
    cut_repeats,
    cut_shards,
    rounded,
)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that decides a plan. `answered` is the head's answers on this stack, by case id: the
    last durations, and under `missing-only` what is left out; under `precision` how well they are
    known, too. `again` leaves out nothing but under `precision`, `retry_failed` takes up what has
    no good answer, whatever the campaign's update says; `owed` are the only cases that it is about,
    where what was measured of them is damaged, or doubted, each with the place that shall not
    measure it again (empty where any may): as many as `again_s` of device time pays for. `before`
    is what the campaign's last round foresaw, where there was one of these inputs."""

    campaign: Campaign
    number: int
    head_commit: int
    round: str
    stack: Stack
    sources: tuple[SourceRecords, ...]
    answered: Mapping[str, HeadAnswer]
    op_mapping: str | None
    retry_failed: bool
    again: bool = False
    owed: Mapping[str, str] | None = None
    again_s: float = inf
    before: Forecast | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan with the tables of its shards, by shard id."""

    plan: Plan
    shards: Mapping[str, bytes]


def make_plan(request: PlanRequest, *, find: FindOperator) -> PlannedRound:
    """The next round of a campaign; without shards where nothing is left to measure."""
    campaign = request.campaign
    candidates = only_operators(distinct_cases(request.sources), campaign.operators)
    left = _spared(candidates, request, find)
    chosen = _chosen(candidates, request, left.left_out)
    taken = {c.record.case_id for c in chosen}
    left_out = len(left.left_out - taken)
    peaks = peaks_of(request.stack)
    priced = _priced(chosen, request, peaks, find)
    answers_hash = _answers_hash(request)
    cost = session_cost(campaign.backend, find, peaks, campaign.measure)
    narrowed = _narrowed(candidates, request, peaks, cost, find)
    missing, priced = priced, [*priced, *narrowed]
    if not _is_elsewhere(request):
        shards = cut_shards(
            priced, campaign.shards, campaign.devices, cost, answers_hash=answers_hash
        )
    else:
        places = request.owed or {}
        again = within_their_time(priced, places, request.again_s, campaign.shards, cost)
        priced = [item for _, items in again for item in items]
        shards = cut_elsewhere(again, campaign.shards, cost, answers_hash)
    once_s = _device_s(shards, campaign.backend)
    repeated = _repeated(missing, request, shards, cost.start_s)
    # Behind the others: sessions far apart in time tell more of how far sessions differ.
    begin_s = once_s / campaign.devices
    shards += cut_repeats(repeated, campaign.shards, cost, begin_s, answers_hash, shards)
    told = _shares(candidates, missing, request, find)
    forecast = Forecast(
        cases=len(priced),
        unsupported=sum(item.refusal is not None for item in priced),
        answered=_answered(candidates, request, taken) - len(narrowed),
        device_s=rounded(_device_s(shards, campaign.backend)),
        wall_s=rounded(_wall_s(shards, campaign)),
        floor_s=rounded(_floor_s([*priced, *chain.from_iterable(repeated)], campaign)),
        repeats=sum(map(len, repeated)),
        narrowed=len(narrowed),
        doubtful=len(priced) if _is_elsewhere(request) else 0,
        left_out=left_out,
        unsure=min(left.unsure, left_out),
        learning=left.learning if _teaches(request, left.learning + left_out) else 0,
        compute_us=told.compute_us,
        measurable_us=told.measurable_us,
        unknown_us=told.unknown_us,
    )
    return PlannedRound(
        plan=_plan(request, forecast, shards),
        shards={shard.shard_id: shard.table for shard in shards},
    )


def _shares(
    candidates: Sequence[Candidate],
    priced: Sequence[PricedCase],
    request: PlanRequest,
    find: FindOperator,
) -> Shares:
    """What of the sources' time the plan's devices can measure, measured already or not. What is
    priced was looked at before."""
    campaign, cache = request.campaign, request.campaign.measure.cache
    refused = [item.candidate for item in priced if item.refusal is not None]
    rest: Sequence[Candidate] = ()
    if len(priced) < len(candidates):
        known = {item.candidate.record.case_id for item in priced}
        rest = [c for c in candidates if c.record.case_id not in known and c.weight.time_us]
    others = refused_cases(rest, find, campaign.backend, campaign.devices, cache)
    sources = (source for source, _ in request.sources)
    return shares(candidates, [*refused, *others], sources)


def _is_elsewhere(request: PlanRequest) -> bool:
    """Whether it is for what doubtful sessions measured."""
    return any((request.owed or {}).values())


def _spared(candidates: Sequence[Candidate], request: PlanRequest, find: FindOperator) -> Spared:
    """What the models of surfaces tell, or will."""
    campaign = request.campaign
    if campaign.density is None:
        return Spared()
    return spared(candidates, request.answered, campaign.density, find, campaign.backend)


def _teaches(request: PlanRequest, unanswered: int) -> bool:
    """Whether a round may follow this one, of whose surfaces so many cases have no answer. Where
    that are no fewer than before the last round, which was to teach, its cases got no answer that
    the head shows, and nor may those of the next."""
    before = request.before
    if before is None:
        return True
    if request.owed is not None:
        # What is measured anew brings back no round that was not to follow.
        return before.learning > 0
    return not before.learning or unanswered < before.learning + before.left_out


def _answered(candidates: Sequence[Candidate], request: PlanRequest, taken: Container[str]) -> int:
    """How many cases that a plan does not take up have an answer, or a duration in their tree."""
    return sum(
        c.weight.in_tree or c.record.case_id in request.answered
        for c in candidates
        if c.record.case_id not in taken
    )


def _chosen(
    candidates: Sequence[Candidate], request: PlanRequest, left_out: Container[str]
) -> Sequence[Candidate]:
    """The candidates that a plan takes up."""
    if request.owed is not None:
        return [c for c in candidates if c.record.case_id in request.owed]
    candidates = [c for c in candidates if c.record.case_id not in left_out]
    update = request.campaign.update
    if update != "precision" and (request.again or (update == "all" and not request.retry_failed)):
        return candidates
    return still_missing(candidates, request.answered, retry_failed=request.retry_failed)


def _priced(
    candidates: Sequence[Candidate], request: PlanRequest, peaks: Peaks, find: FindOperator
) -> list[PricedCase]:
    campaign = request.campaign
    return [
        price(
            candidate,
            find,
            peaks,
            campaign.measure,
            campaign.limits,
            request.answered.get(candidate.record.case_id),
            campaign.backend,
            campaign.devices,
        )
        for candidate in candidates
    ]


def _narrowed(
    candidates: Sequence[Candidate],
    request: PlanRequest,
    peaks: Peaks,
    cost: SessionCost,
    find: FindOperator,
) -> list[PricedCase]:
    """The answered cases that are measured once more, for their intervals; none of a plan that is
    about failures or damage alone."""
    campaign, answered = request.campaign, request.answered
    if campaign.update != "precision" or request.owed is not None or request.retry_failed:
        return []
    known = [
        c
        for c in candidates
        if (answer := answered.get(c.record.case_id)) is not None and answer.interval is not None
    ]
    priced = _priced(known, request, peaks, find)
    return worth_their_time(priced, answered, campaign, cost)


def _repeated(
    priced: Sequence[PricedCase],
    request: PlanRequest,
    shards: Sequence[CutShard],
    start_s: float,
) -> list[list[PricedCase]]:
    """The cases that a plan measures a second time, by shard; none of one that is about failures or
    damage alone. Gangs of each number of ranks pay for their own, single devices for theirs."""
    if request.owed is not None or request.retry_failed:
        return []
    campaign, found = request.campaign, list[list[PricedCase]]()
    lanes = {case_id: shard.lane for shard in shards for case_id in shard.case_ids}
    for ranks in sorted({item.ranks for item in priced}, reverse=True):
        if ranks == 1:
            total_s = _device_s(shards, campaign.backend)
        else:
            total_s = fsum(shard.predicted_s for shard in shards if shard.ranks == ranks)
        found += repeated_shards(
            [item for item in priced if item.ranks == ranks],
            campaign.quality.repeat_share,
            total_s=total_s,
            start_s=start_s if ranks == 1 else GANG_COST.start_s,
            token=request.number,
            lanes=lanes if ranks == 1 else {},
        )
    return found


def _wall_s(shards: Sequence[CutShard], campaign: Campaign) -> float:
    """When the last shard ends, if every forecast holds; shards of repeats share the devices."""
    last_s = max((s.start_s + s.predicted_s for s in shards), default=0.0)
    return max(last_s, _device_s(shards, campaign.backend) / campaign.devices)


def _device_s(shards: Sequence[CutShard], backend: str) -> float:
    """The device-seconds of shards, by forecast."""
    return fsum(s.predicted_s * devices_for(s.ranks, backend) for s in shards)


def inputs_hash(
    campaign: Campaign, stack: Stack, sources: Sequence[PlannedSource], op_mapping: str | None
) -> str:
    """What decides whether a plan is this campaign's: sources by content, settings, stack. What
    it spends on quality is left out where that is usual: earlier plans did not say it."""
    told, usual = campaign.quality.as_json(), QualitySettings().as_json()
    return short_hash(
        {
            **({} if told == usual else {"quality": told}),
            **({} if campaign.density is None else {"density": campaign.density.as_json()}),
            "sources": sorted([source.sha256, source.same_stack] for source in sources),
            "stack": stack.stack_id,
            "operators": None if campaign.operators is None else sorted(campaign.operators),
            "update": campaign.update,
            "backend": campaign.backend,
            "devices": campaign.devices,
            "measure": campaign.measure.as_json(),
            "shards": asdict(campaign.shards),
            "limits": asdict(campaign.limits),
            "op_mapping": op_mapping,
        }
    )


def _answers_hash(request: PlanRequest) -> str:
    """What else than its cases makes a shard's answers what they are."""
    campaign = request.campaign
    return short_hash(
        {
            "stack": request.stack.stack_id,
            "backend": campaign.backend,
            "measure": campaign.measure.as_json(),
            "session_s": campaign.shards.session_s,
            "limits": asdict(campaign.limits),
            "round": request.round,
        }
    )


def _floor_s(priced: Sequence[PricedCase], campaign: Campaign) -> float:
    """No packing is faster: the mean over the devices, or the one case that takes longest."""
    work_s = fsum(item.cost_s * devices_for(item.ranks, campaign.backend) for item in priced)
    return max(work_s / campaign.devices, max((item.cost_s for item in priced), default=0.0))


def _plan(request: PlanRequest, forecast: Forecast, shards: Sequence[CutShard]) -> Plan:
    campaign = request.campaign
    sources = tuple(source for source, _ in request.sources)
    return Plan(
        campaign=campaign.name,
        number=request.number,
        head_commit=request.head_commit,
        inputs_hash=inputs_hash(campaign, request.stack, sources, request.op_mapping),
        round=request.round,
        stack=request.stack,
        backend=campaign.backend,
        devices=campaign.devices,
        operators=None if campaign.operators is None else tuple(sorted(campaign.operators)),
        update=campaign.update,
        measure=campaign.measure,
        shard_settings=campaign.shards,
        limits=campaign.limits,
        sources=sources,
        op_mapping=request.op_mapping,
        forecast=forecast,
        shards=tuple(
            PlannedShard(
                s.shard_id,
                s.cases,
                s.predicted_s,
                sha256_hex(s.table),
                s.ranks,
                s.again_of,
                s.not_on,
            )
            for s in shards
        ),
    )
