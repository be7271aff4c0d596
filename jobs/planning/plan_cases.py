"""The cases of a plan: chosen, priced, and measured again where that narrows most. Pure."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf, sqrt

from collector.codec.errors import BadInput
from collector.model.manifest import Usage
from collector.model.plan import Forecast, devices_for
from collector.model.stack import Stack
from collector.ops.refusals import FindOperator
from jobs.campaign.campaign_file import Campaign
from jobs.planning import shard_cutting
from jobs.planning.candidates import (
    Candidate,
    HeadResult,
    OldDurations,
    PricedCase,
    SourceRecords,
    cases_to_measure,
    price,
)
from jobs.planning.forecast import Peaks, SessionCost
from jobs.planning.second_sessions import repeated_shards
from jobs.planning.shard_cutting import CutShard

# Which measured cases a plan measures again under `update: precision`: those whose intervals narrow
# most per second of one more session. Pure.


@dataclass(frozen=True, slots=True)
class _Work:
    """A number of cases and the seconds that they take."""

    cases: int = 0
    work_s: float = 0.0


def _whole_s(ranks: int, work: _Work, campaign: Campaign, cost: SessionCost) -> float:
    """Return the device time of cases with this number of ranks, with session overhead.

    Every device whose share is worth a start has at least one session."""
    settings = campaign.shards
    count = ceil(work.work_s / settings.target_s)
    if ranks == 1:
        start_s = cost.start_s
        devices = shard_cutting.devices_worth_starting(
            work.work_s, campaign.devices, settings, start_s
        )
        count = devices * shard_cutting.shards_a_device(work.work_s, devices, settings, start_s)
    shards = min(work.cases, count)
    session = cost if ranks == 1 else cost.of_gangs
    shard_s, cases = work.work_s / shards, work.cases // shards
    whole_s = work.work_s + shards * session.of_sessions(shard_s, settings.session_s, cases)
    return whole_s * devices_for(ranks, campaign.backend)


def _rank(
    item: PricedCase, head_results: Mapping[str, HeadResult], backend: str
) -> tuple[float, str]:
    device_s = item.cost_s * devices_for(item.ranks, backend)
    per_s = _narrowed(item, head_results) / max(device_s, 1e-9)
    return (-per_s, item.candidate.record.case_id)


def _narrowed(item: PricedCase, head_results: Mapping[str, HeadResult]) -> float:
    """Return by how much one more session narrows a case's interval.

    The interval is assumed to consist of the variance of sessions only.

    Return 0 if the case has no interval or no device runs it."""
    result = head_results.get(item.candidate.record.case_id)
    if item.refusal is not None or result is None or result.interval is None:
        return 0.0
    sessions, reach = result.interval.sessions, result.interval.reach
    return reach * (1 - sqrt(sessions / (sessions + 1)))


# The request for a round. Pure.


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All inputs that determine a plan.

    Args:
        answered: results in the head on this stack, by case id. They give the last durations, under
            `missing-only` the cases to leave out, and under `precision` also their intervals.
        again: leave out no case, except under `precision`.
        retry_failed: select cases without a good result, regardless of the campaign's update.
        owed: if set, select only these cases, whose measurements are damaged or suspect. Each has
            the device or node that must not measure it again (empty if any may).
        again_s: device time that limits how many of `cases_to_repeat` are measured.
        before: the forecast of the campaign's last round with these inputs, if there was one.
        usages: those of sessions on this stack, from which its overheads are learned.
        old: the durations of an older stack, to be reused where they are equal."""

    campaign: Campaign
    number: int
    head_commit: int
    round: str
    stack: Stack
    sources: tuple[SourceRecords, ...]
    head_results: Mapping[str, HeadResult]
    op_mapping: str | None
    retry_failed: bool
    again: bool = False
    cases_to_repeat: Mapping[str, str] | None = None
    repeat_budget_s: float = inf
    before: Forecast | None = None
    usages: tuple[Usage, ...] = ()
    old: OldDurations | None = None

    @property
    def repeats_suspect_cases(self) -> bool:
        """Return whether the round repeats cases of suspect sessions."""
        return any((self.cases_to_repeat or {}).values())


def chosen_cases(
    candidates: Sequence[Candidate], request: PlanRequest, left_out: Container[str]
) -> Sequence[Candidate]:
    """Return the candidates that a plan selects."""
    if request.cases_to_repeat is not None:
        return [c for c in candidates if c.record.case_id in request.cases_to_repeat]
    candidates = [c for c in candidates if c.record.case_id not in left_out]
    update = request.campaign.update
    if update != "precision" and (request.again or (update == "all" and not request.retry_failed)):
        return candidates
    return cases_to_measure(candidates, request.head_results, retry_failed=request.retry_failed)


def priced_cases(
    candidates: Sequence[Candidate], request: PlanRequest, peaks: Peaks, find: FindOperator
) -> list[PricedCase]:
    """Return the candidates with their cost, or the reason why they cannot be measured."""
    results, campaign = request.head_results, request.campaign
    return [
        price(one, find, peaks, campaign, results.get(one.record.case_id)) for one in candidates
    ]


def narrowed_cases(
    candidates: Sequence[Candidate],
    request: PlanRequest,
    peaks: Peaks,
    cost: SessionCost,
    find: FindOperator,
) -> list[PricedCase]:
    """Return the measured cases that the budget of device time measures again.

    The cases whose intervals narrow most per second come first. `cost` is the overhead of a session
    besides its cases. Return none for a plan that only repeats failures or damage. Raise BadInput
    if the budget does not pay for a session."""
    campaign, head_results = request.campaign, request.head_results
    is_repair = request.cases_to_repeat is not None or request.retry_failed
    if campaign.update != "precision" or is_repair:
        return []
    budget_s = (campaign.quality.budget_device_h or 0.0) * 3600
    if budget_s <= cost.start_s:
        raise BadInput(
            f"quality.budget_device_h: {budget_s:.0f} s is too short for one case: a session takes "
            f"{cost.start_s:.0f} s to start"
        )
    known = [
        c
        for c in candidates
        if (result := head_results.get(c.record.case_id)) is not None
        and result.interval is not None
    ]
    priced = priced_cases(known, request, peaks, find)
    chosen: list[PricedCase] = []
    of_ranks: dict[int, _Work] = {}
    for item in sorted(priced, key=lambda item: _rank(item, head_results, campaign.backend)):
        before = of_ranks.get(item.ranks, _Work())
        more = of_ranks | {item.ranks: _Work(before.cases + 1, before.work_s + item.cost_s)}
        whole_s = fsum(_whole_s(ranks, work, campaign, cost) for ranks, work in more.items())
        if _narrowed(item, head_results) > 0 and whole_s <= budget_s:
            of_ranks = more
            chosen.append(item)
    return chosen


def repeats_of(
    priced: Sequence[PricedCase],
    request: PlanRequest,
    shards: Sequence[CutShard],
    cost: SessionCost,
    sample: Container[str] = frozenset(),
) -> list[list[PricedCase]]:
    """Return the cases that a plan measures a second time, by shard, or in as many further sessions
    as the campaign requests.

    Return none for a plan that only repeats failures or damage. Gangs of each number of ranks and
    single devices have separate budgets. All cases of the `sample` of an upgrade are repeated: each
    decides about many others."""
    if request.cases_to_repeat is not None or request.retry_failed:
        return []
    campaign, found = request.campaign, list[list[PricedCase]]()
    if (sessions := campaign.quality.sessions) > 1:
        once = [
            shard
            for ranks in sorted({item.ranks for item in priced}, reverse=True)
            for shard in shard_cutting.parts_of(
                [item for item in priced if item.ranks == ranks], campaign.shards.session_s
            )
        ]
        return once * (sessions - 1)
    share = campaign.quality.repeat_share
    lanes = {case_id: shard.lane for shard in shards for case_id in shard.case_ids}
    for ranks in sorted({item.ranks for item in priced}, reverse=True):
        if ranks == 1:
            total_s = shard_cutting.device_s(shards, campaign.backend)
        else:
            total_s = fsum(shard.predicted_s for shard in shards if shard.ranks == ranks)
        own = [item for item in priced if item.ranks == ranks]
        sampled = [item for item in own if item.candidate.record.case_id in sample]
        if sampled and share:
            found += repeated_shards(
                sampled,
                share=1.0,
                total_s=total_s,
                start_s=cost.start_s,
                token=request.number,
                lanes=lanes,
            )
        found += repeated_shards(
            [item for item in own if item.candidate.record.case_id not in sample],
            share,
            total_s=total_s,
            start_s=cost.start_s if ranks == 1 else cost.gang_start_s,
            token=request.number,
            lanes=lanes if ranks == 1 else {},
        )
    return found
