"""The cases that a plan takes up: those it measures, those it leaves to the models of surfaces,
those it measures once more, and those it measures twice. Pure."""

from collections.abc import Container, Sequence
from math import fsum

from collector.ops.refusals import FindOperator
from jobs.planning.candidates import Candidate, PricedCase, price, still_missing
from jobs.planning.density import Spared, spared
from jobs.planning.forecast import Peaks, SessionCost
from jobs.planning.plan_request import PlanRequest
from jobs.planning.precision import worth_their_time
from jobs.planning.repeats import repeated_shards
from jobs.planning.shard_cutting import GANG_COST, CutShard, device_s


def spared_cases(
    candidates: Sequence[Candidate], request: PlanRequest, find: FindOperator
) -> Spared:
    """What the models of surfaces tell, or will."""
    campaign = request.campaign
    if campaign.density is None:
        return Spared()
    return spared(candidates, request.answered, campaign.density, find, campaign.backend)


def chosen_cases(
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


def priced_cases(
    candidates: Sequence[Candidate], request: PlanRequest, peaks: Peaks, find: FindOperator
) -> list[PricedCase]:
    """The candidates with what each will take, or why nobody can measure it."""
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


def narrowed_cases(
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
    priced = priced_cases(known, request, peaks, find)
    return worth_their_time(priced, answered, campaign, cost)


def repeats_of(
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
            total_s = device_s(shards, campaign.backend)
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
