"""From the cases of a campaign to a plan: equal shards, and a forecast before anything starts.

Pure: no store, no clock. The same request gives the same plan and the same tables, byte for byte,
so that whoever plans again after a crash writes what is already there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from math import ceil, fsum

from collector.canonical import sha256_hex, short_hash
from collector.counting import counted
from collector.ops.refusals import FindOperator
from collector.plan import Forecast, Plan, PlannedShard, PlannedSource, ShardSettings
from collector.shard import ShardCase, write_shard
from collector.stack import Stack
from jobs.campaign.campaign_file import Campaign
from jobs.planning.candidates import (
    Candidate,
    HeadAnswer,
    PricedCase,
    SourceRecords,
    Unsupported,
    distinct_cases,
    only_operators,
    price,
    still_missing,
    unsupported,
)
from jobs.planning.forecast import peaks_of
from jobs.planning.packing import pack

# Shorter shards follow the devices' real speed better; below this their start-up weighs too much.
_SHORTEST_SHARD_S = 180.0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """All that decides a plan. `answered` is the head's answers on this stack, by case id: the
    last durations, and under `missing-only` what is left out. `again` leaves out nothing,
    `retry_failed` takes up what has no good answer, whatever the campaign's update says; `owed`
    are the only cases that it is about, where what was measured of them is damaged."""

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
    owed: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan with the tables of its shards, by shard id, and what it will not measure."""

    plan: Plan
    shards: Mapping[str, bytes]
    unsupported: tuple[Unsupported, ...]


@dataclass(frozen=True, slots=True)
class _Shard:
    """`start_s` is when its device should come to it, if every forecast holds."""

    shard_id: str
    table: bytes
    cases: int
    predicted_s: float
    start_s: float


def make_plan(request: PlanRequest, *, find: FindOperator) -> PlannedRound:
    """The next round of a campaign; without shards where nothing is left to measure."""
    campaign = request.campaign
    candidates = only_operators(distinct_cases(request.sources), campaign.operators)
    chosen = _chosen(candidates, request)
    peaks = peaks_of(request.stack)
    priced = [
        price(
            candidate,
            find,
            peaks,
            campaign.measure,
            campaign.limits,
            request.answered.get(candidate.record.case_id),
            campaign.backend,
        )
        for candidate in chosen
    ]
    by_device = _packed(priced, request, peaks.session_start_s)
    shards = sorted(
        (shard for device in by_device for shard in device),
        key=lambda shard: (shard.start_s, -shard.predicted_s, shard.shard_id),
    )
    forecast = Forecast(
        cases=len(priced),
        unsupported=sum(item.refusal is not None for item in priced),
        answered=len(candidates) - len(chosen),
        device_s=_rounded(fsum(shard.predicted_s for shard in shards)),
        wall_s=_rounded(max((s.start_s + s.predicted_s for s in shards), default=0.0)),
        floor_s=_rounded(_floor_s([item.cost_s for item in priced], campaign.devices)),
    )
    return PlannedRound(
        plan=_plan(request, forecast, shards),
        shards={shard.shard_id: shard.table for shard in shards},
        unsupported=unsupported(priced),
    )


def _chosen(candidates: Sequence[Candidate], request: PlanRequest) -> Sequence[Candidate]:
    """The candidates that a plan takes up."""
    if request.owed is not None:
        return [c for c in candidates if c.record.case_id in request.owed]
    if request.again or not (request.campaign.update == "missing-only" or request.retry_failed):
        return candidates
    return still_missing(candidates, request.answered, retry_failed=request.retry_failed)


def inputs_hash(
    campaign: Campaign, stack: Stack, sources: Sequence[PlannedSource], op_mapping: str | None
) -> str:
    """What decides whether a plan is this campaign's: sources by content, settings, stack."""
    return short_hash(
        {
            "sources": sorted([source.sha256, source.same_stack] for source in sources),
            "stack": stack.stack_id,
            "operators": None if campaign.operators is None else sorted(campaign.operators),
            "update": campaign.update,
            "backend": campaign.backend,
            "devices": campaign.devices,
            "measure": asdict(campaign.measure),
            "shards": asdict(campaign.shards),
            "limits": asdict(campaign.limits),
            "op_mapping": op_mapping,
        }
    )


def describe_forecast(plan: Plan) -> list[str]:
    """What to print before anything starts, a line a fact."""
    forecast, devices = plan.forecast, counted(plan.devices, "device")
    hours = forecast.device_s / 3600
    return [
        f"cases      {forecast.cases:,} in {counted(len(plan.shards), 'shard')}; "
        f"{forecast.unsupported:,} cannot be measured, {forecast.answered:,} are answered already",
        f"device     {forecast.device_s:,.0f} device-seconds ({hours:,.2f} device-hours)",
        f"wall time  {_duration(forecast.wall_s)} on {devices}; "
        f"the floor is {_duration(forecast.floor_s)}",
    ]


def shards_a_device(total_s: float, devices: int, settings: ShardSettings, start_s: float) -> int:
    """How many shards each device gets, for `total_s` of work and `start_s` to start a shard."""
    count = max(1, ceil(total_s / (devices * settings.target_s)))
    if settings.target_s < _SHORTEST_SHARD_S:
        return count
    while total_s / (devices * 2 * count) + start_s >= _SHORTEST_SHARD_S:
        count *= 2
    return count


def _packed(
    priced: Sequence[PricedCase], request: PlanRequest, start_s: float
) -> list[list[_Shard]]:
    """The shards of each device, in the order in which it should come to them.

    Handing shards out by their planned start gives every device its own ones, as long as the
    forecasts hold; where they do not, the next free device takes over.
    """
    campaign = request.campaign
    costs = [item.cost_s for item in priced]
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(priced):
        groups.setdefault(item.group, []).append(index)
    count = shards_a_device(fsum(costs), campaign.devices, campaign.shards, start_s)
    packing = pack(list(groups.values()), costs, campaign.devices, count)
    settings = _settings_hash(request)
    devices = []
    for device in packing.devices:
        members = [_in_order([priced[index] for index in shard]) for shard in device]
        lasts = [_shard_s(shard, campaign.shards.session_s, start_s) for shard in members]
        starts = accumulate(lasts[:-1], initial=0.0)
        devices.append(
            [_shard(*facts, settings) for facts in zip(members, lasts, starts, strict=True)]
        )
    return devices


def _in_order(shard: Sequence[PricedCase]) -> list[PricedCase]:
    """Groups stay together, so that they set up once. The cheap ones come first: a shard that
    is interrupted has then answered most of its cases, and a case that kills its session, which
    is most often a large one, takes the fewest neighbours with it."""
    costs: dict[str, list[float]] = {}
    for item in shard:
        costs.setdefault(item.group, []).append(item.cost_s)
    group_cost = {group: fsum(members) for group, members in costs.items()}
    return sorted(
        shard,
        key=lambda item: (
            group_cost[item.group],
            item.group,
            item.cost_s,
            item.candidate.record.case_id,
        ),
    )


def _shard_s(shard: Sequence[PricedCase], session_s: float, start_s: float) -> float:
    """The cases, and the start of every session they need."""
    work_s = fsum(item.cost_s for item in shard)
    return work_s + start_s * max(1, ceil(work_s / session_s))


def _shard(
    cases: Sequence[PricedCase], predicted_s: float, start_s: float, settings: str
) -> _Shard:
    table = write_shard(ShardCase(item.candidate.planned_record, item.cost_s) for item in cases)
    shard_id = short_hash([sha256_hex(table), settings])
    return _Shard(shard_id, table, len(cases), _rounded(predicted_s), start_s)


def _settings_hash(request: PlanRequest) -> str:
    """What else than its cases makes a shard's answers what they are."""
    campaign = request.campaign
    return short_hash(
        {
            "stack": request.stack.stack_id,
            "backend": campaign.backend,
            "measure": asdict(campaign.measure),
            "session_s": campaign.shards.session_s,
            "limits": asdict(campaign.limits),
            "round": request.round,
        }
    )


def _floor_s(costs: Sequence[float], devices: int) -> float:
    """No packing is faster: the mean over the devices, or the one case that takes longest."""
    return max(fsum(costs) / devices, max(costs, default=0.0))


def _plan(request: PlanRequest, forecast: Forecast, shards: Sequence[_Shard]) -> Plan:
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
            PlannedShard(s.shard_id, s.cases, s.predicted_s, sha256_hex(s.table)) for s in shards
        ),
    )


def _rounded(seconds: float) -> float:
    """To the millisecond: a forecast is no better than that, and its text stays short."""
    return round(seconds, 3)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
