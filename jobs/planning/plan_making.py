"""From the cases of a campaign to a plan: equal shards, and a forecast before anything starts.

Pure: no store, no clock. The same request gives the same plan and the same tables, byte for byte,
so that planning again after a crash writes what is already there.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import ceil, fsum

from collector.codec.canonical import sha256_hex, short_hash
from collector.database.reuse import Reuse
from collector.model.plan import (
    Forecast,
    Plan,
    PlannedShard,
    PlannedSource,
    ShardSettings,
    devices_for,
)
from collector.model.stack import Stack
from collector.ops.refusals import FindOperator
from jobs.campaign.campaign_file import Campaign
from jobs.planning import plan_cases, shard_cutting
from jobs.planning.candidates import Candidate, PricedCase, distinct_cases, only_operators
from jobs.planning.curve_cases import CasesLeftOut, left_out_cases
from jobs.planning.forecast import SessionCost, peaks_of, session_cost, with_overheads
from jobs.planning.gaps import Shares, refused_cases, shares
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.shard_cutting import CutShard
from jobs.planning.upgrades import KernelSample, UpgradeRound, upgrade_round

# Which cases of suspect sessions a round measures again: those that a limited time pays for, each
# on another device or node than before. Pure.


def within_repeat_budget(
    priced: Sequence[PricedCase],
    places: Mapping[str, str],
    budget_s: float,
    settings: ShardSettings,
    cost: SessionCost,
) -> list[tuple[str, list[PricedCase]]]:
    """Return the priced cases that `budget_s` pays for, including the sessions that they need.

    The shortest come first, grouped by the device or node that measured them. `cost` is the
    overhead of a session besides its cases.

    Example: 30 s pay for one session that takes 10 s to start and five cases of 4 s from one node.
    For cases from two nodes they pay for two sessions and two cases."""
    chosen: dict[str, list[PricedCase]] = {}
    work_s: dict[str, float] = {}
    for item in sorted(priced, key=lambda item: (item.cost_s, item.candidate.record.case_id)):
        place = places[item.candidate.record.case_id]
        more = work_s | {place: work_s.get(place, 0.0) + item.cost_s}
        if fsum(_whole_s(own_s, settings, cost) for own_s in more.values()) <= budget_s:
            work_s = more
            chosen.setdefault(place, []).append(item)
    return sorted(chosen.items())


def _whole_s(work_s: float, settings: ShardSettings, cost: SessionCost) -> float:
    """Return the time of cases from one device or node, in shards of about one session each."""
    shards = max(1, ceil(work_s / settings.session_s))
    return work_s + shards * cost.of_sessions(work_s / shards, settings.session_s)


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A plan with the tables of its shards, by shard id. After an upgrade, also what it reuses of
    the older stack, and the kernels that it samples."""

    plan: Plan
    shards: Mapping[str, bytes]
    reuse: Reuse | None = None
    samples: tuple[KernelSample, ...] = ()


def make_plan(request: PlanRequest, *, find: FindOperator) -> PlannedRound:
    """Return the next round of a campaign; without shards if nothing is left to measure."""
    campaign = request.campaign
    candidates = only_operators(distinct_cases(request.sources), campaign.operators)
    upgrade = _upgrade_round(candidates, request)
    left = left_out_cases(candidates, request, find)
    if upgrade.sample or upgrade.reused:
        waiting = upgrade.waiting
        left = CasesLeftOut(waiting | upgrade.reused, len(waiting), len(upgrade.sample))
    chosen = plan_cases.chosen_cases(candidates, request, left.left_out)
    taken = {c.record.case_id for c in chosen}
    left_out = len(left.left_out - taken)
    peaks = with_overheads(peaks_of(request.stack), request.usages)
    priced = plan_cases.priced_cases(chosen, request, peaks, find)
    cost = session_cost(campaign.backend, find, peaks, campaign.measure)
    narrowed = plan_cases.narrowed_cases(candidates, request, peaks, cost, find)
    missing, priced = priced, [*priced, *narrowed]
    cutter = shard_cutting.Cutter(campaign.shards, cost, _results_hash(request))
    if not request.repeats_suspect_cases:
        cut = _fastest(cutter, priced, missing, request, upgrade.sample)
    else:
        places = request.cases_to_repeat or {}
        again = within_repeat_budget(priced, places, request.repeat_budget_s, campaign.shards, cost)
        priced = [item for _, items in again for item in items]
        cut = _Cut(cutter.suspects(again), ())
    shards, repeated = cut.shards, cut.repeated

    def has_result(one: Candidate) -> bool:
        """Return whether a case outside the plan has a result, or a duration in its tree."""
        case_id = one.record.case_id
        known = one.weight.in_tree or case_id in request.head_results
        return known and case_id not in taken

    known = _shares(candidates, missing, request, find)
    forecast = Forecast(
        cases=len(priced),
        unsupported=sum(item.refusal is not None for item in priced),
        answered=sum(map(has_result, candidates)) - len(narrowed),
        device_s=shard_cutting.rounded(shard_cutting.device_s(shards, campaign.backend)),
        wall_s=shard_cutting.rounded(_wall_s(shards, campaign)),
        floor_s=shard_cutting.rounded(
            _lower_bound_s([*priced, *chain.from_iterable(repeated)], campaign)
        ),
        repeats=sum(map(len, repeated)),
        narrowed=len(narrowed),
        doubtful=len(priced) if request.repeats_suspect_cases else 0,
        left_out=left_out,
        unsure=min(left.unsure, left_out),
        learning=left.learning if _may_follow(request, left.learning + left_out) else 0,
        compute_us=known.compute_us,
        measurable_us=known.measurable_us,
        unknown_us=known.unknown_us,
    )
    return PlannedRound(
        plan=_plan(request, forecast, shards),
        shards={shard.shard_id: shard.table for shard in shards},
        reuse=_reuse(request, upgrade),
        samples=upgrade.samples,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """The shards of a plan, and the cases of those that measure a second time."""

    shards: Sequence[CutShard]
    repeated: Sequence[Sequence[PricedCase]]


def _fastest(
    cutter: shard_cutting.Cutter,
    priced: Sequence[PricedCase],
    missing: Sequence[PricedCase],
    request: PlanRequest,
    sample: Container[str],
) -> _Cut:
    """Return the cut that ends first.

    A short plan has one session for each device. Its repeats then get devices of their own: after
    the others they would make the plan twice as long, and longer than with fewer devices."""
    campaign = request.campaign
    best = _cut(cutter, priced, missing, request, sample)
    spared = campaign.devices - len(best.repeated)
    if not best.repeated or spared < 1 or any(item.ranks > 1 for item in priced):
        return best
    other = _cut(cutter, priced, missing, request, sample, lanes=spared)
    return min(best, other, key=lambda cut: _wall_s(cut.shards, campaign))


def _cut(
    cutter: shard_cutting.Cutter,
    priced: Sequence[PricedCase],
    missing: Sequence[PricedCase],
    request: PlanRequest,
    sample: Container[str],
    lanes: int = 0,
) -> _Cut:
    """Cut the cases for all devices and their repeats after them, or the cases for fewer devices
    (`lanes`), and their repeats for those that are left."""
    campaign = request.campaign
    once = cutter.cut(priced, lanes or campaign.devices)
    repeated = plan_cases.repeats_of(missing, request, once, cutter.cost, sample)
    # Sessions far apart in time show more of the variance between sessions.
    once_s = shard_cutting.device_s(once, campaign.backend)
    again = cutter.repeats(repeated, 0.0 if lanes else once_s / campaign.devices, once)
    return _Cut([*once, *again], repeated)


def _upgrade_round(candidates: Sequence[Candidate], request: PlanRequest) -> UpgradeRound:
    if request.old is None:
        return UpgradeRound()
    return upgrade_round(candidates, request.head_results, request.old)


def _reuse(request: PlanRequest, upgrade: UpgradeRound) -> Reuse | None:
    """Return the record of what a round reuses. A plan that only repeats measurements decides
    nothing."""
    old = request.old
    if old is None or not upgrade.kernels or request.cases_to_repeat is not None:
        return None
    return Reuse(
        campaign=request.campaign.name,
        plan=request.number,
        head_commit=request.head_commit,
        version_path=request.stack.version_path,
        stack_id=request.stack.stack_id,
        of=old.source.version_path,
        of_stack_id=old.stack_id,
        margin=old.source.margin,
        kernels=upgrade.kernels,
    )


def _shares(
    candidates: Sequence[Candidate],
    priced: Sequence[PricedCase],
    request: PlanRequest,
    find: FindOperator,
) -> Shares:
    """Return the share of the sources' time that the plan's devices can measure or have measured.

    Priced cases were already checked for refusals."""
    campaign, cache = request.campaign, request.campaign.measure.cache
    refused = [item.candidate for item in priced if item.refusal is not None]
    rest: Sequence[Candidate] = ()
    if len(priced) < len(candidates):
        known = {item.candidate.record.case_id for item in priced}
        rest = [c for c in candidates if c.record.case_id not in known and c.weight.time_us]
    place = (campaign.backend, campaign.devices, cache, campaign.device)
    others = refused_cases(rest, find, *place)
    return shares(candidates, [*refused, *(case.candidate for case in others)])


def _may_follow(request: PlanRequest, unanswered: int) -> bool:
    """Return whether a round may follow this one. `unanswered` surface cases have no result yet.

    If there are no fewer than before the last round, which should have given training cases, then
    the last round's cases got no result that the head shows. Those of the next round would get none
    either."""
    before = request.before
    if before is None:
        return True
    if request.cases_to_repeat is not None:
        # Measuring damaged cases again does not cause a round that was not due.
        return before.learning > 0
    return not before.learning or unanswered < before.learning + before.left_out


def _wall_s(shards: Sequence[CutShard], campaign: Campaign) -> float:
    """Return when the last shard ends by forecast; shards of repeats share the devices."""
    last_s = max((s.start_s + s.predicted_s for s in shards), default=0.0)
    return max(last_s, shard_cutting.device_s(shards, campaign.backend) / campaign.devices)


def inputs_hash(
    campaign: Campaign, stack: Stack, sources: Sequence[PlannedSource], op_mapping: str | None
) -> str:
    """Return a hash of the inputs that decide whether a plan belongs to this campaign: the sources
    by content, the settings and the stack."""
    return short_hash(
        {
            "quality": asdict(campaign.quality),
            "sampling": None if campaign.sampling is None else asdict(campaign.sampling),
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
            "operator_files": [file.sha256 for file in campaign.planned_operators],
        }
    )


def _results_hash(request: PlanRequest) -> str:
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


def _lower_bound_s(priced: Sequence[PricedCase], campaign: Campaign) -> float:
    """Return the lower bound of any packing: the mean over the devices, or the longest case."""
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
        upgrade_from=None if request.old is None else request.old.source,
        operator_files=campaign.planned_operators,
    )
