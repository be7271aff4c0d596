"""The cases of a plan: measured, left to surface models, repeated and measured twice.

Pure.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import ceil, floor, fsum, inf, log10, sqrt
from types import MappingProxyType

import numpy as np

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.manifest import Usage
from collector.model.plan import Forecast, devices_for
from collector.model.stack import Stack
from collector.ops.refusals import DECLARATION_ERRORS, FindOperator, refusal
from collector.ops.sizes import SizeGroup, dimension_count, length_lists, list_sizes, size_group
from collector.ops.together import lengths_of
from collector.ranks.gangs import is_of_gangs
from collector.surfaces.axes import axes_of
from collector.surfaces.base import Work, by_tensor, monomial_through, work_on
from collector.surfaces.rounds import LEAST_BUDGET, Known, PointBudget, Points, next_round
from jobs.campaign.campaign_file import REPEAT_SHARE, Campaign, SamplingSettings
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
from jobs.planning.shard_cutting import CutShard

# The curves of a campaign: cases of one kernel that differ only in their sizes are points of a
# surface, and its durations can be learnt from a part of the points. Pure.


@dataclass(frozen=True, slots=True)
class Surface:
    """Cases that differ only in their sizes, ordered by case id, and their points."""

    case_ids: tuple[str, ...]
    points: Points


def find_surfaces(
    cases: Iterable[tuple[str, Case]], find: FindOperator, backend: str, least: int
) -> list[Surface]:
    """Return the surfaces with at least `least` points among the cases.

    Cases over several ranks, refused cases and cases with an empty tensor are not on any surface.
    """
    groups: dict[SizeGroup, list[tuple[str, Case]]] = defaultdict(list)
    for case_id, case in cases:
        if case.inputs is not None and not is_of_gangs(case):
            groups[size_group(case)].append((case_id, case))
    large = (sorted(group) for group in groups.values() if len(group) >= least)
    found = (_surface(group, find, backend) for group in large)
    return [surface for surface in found if len(surface.case_ids) >= least]


def _surface(group: Sequence[tuple[str, Case]], find: FindOperator, backend: str) -> Surface:
    ids, rows, operations = [], [], []
    for case_id, case in group:
        known = _operations(case, find, backend)
        lengths = lengths_of(case)
        if known is not None and min(lengths, default=0) > 0:
            ids.append(case_id)
            rows.append([*lengths, *list_sizes(length_lists(case))])
            operations.append(known)
    if not ids:
        return Surface((), Points(np.empty((0, 0)), Work()))
    case, columns = group[0][1], np.array(rows, np.int64)
    columns[:, list(size_group(case).free)] = 0
    axes = axes_of(columns, range(len(lengths_of(case)), columns.shape[1])).axes or (0,)
    sizes = columns[:, axes].astype(np.float64)
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    tensors, count = by_tensor(list(map(dimension_count, slots)), columns), len(case.inputs or ())
    power_law = monomial_through(sizes, np.array(operations, np.float64))
    return Surface(
        tuple(ids), Points(sizes, work_on(sizes, tensors[:count], tensors[count:], power_law))
    )


def _operations(case: Case, find: FindOperator, backend: str) -> float | None:
    op = find(case.kernel_type)
    if op is None or refusal(case, find, backend) is not None:
        return None
    try:
        return op.flops(case)
    except DECLARATION_ERRORS:
        return None


# Which cases of a campaign's curves a round measures if the model of each surface predicts the
# others. Pure and stateless: the next round follows from the results so far.


@dataclass(frozen=True, slots=True)
class CasesLeftOut:
    """The cases that a round leaves out.

    `unsure` of them are not known to the tolerance. The round requests `learning` cases of
    surfaces; if there are any, another round follows."""

    left_out: frozenset[str] = frozenset()
    unsure: int = 0
    learning: int = 0


def left_out_cases(
    candidates: Sequence[Candidate], request: "PlanRequest", find: FindOperator
) -> CasesLeftOut:
    """Return the candidates that the next round leaves out.

    Candidates that are on no surface large enough for a model are not left out.

    Example: for a curve of 1,000 cases and a share of 25 %, the first round requests 110 cases that
    train the model and 50 that check how well it predicts the others, and leaves out 840. Two more
    rounds request 90 in total where the model is unsure, unless it is sure before."""
    head_results, settings = request.head_results, request.campaign.sampling
    if settings is None:
        return CasesLeftOut()
    cases = (
        (candidate.record.case_id, candidate.record.case)
        for candidate in candidates
        if not candidate.weight.in_tree or candidate.record.case_id in head_results
    )
    least = int(np.ceil(LEAST_BUDGET / settings.share))
    surfaces = find_surfaces(cases, find, request.campaign.backend, least)
    found = [_spared_of(surface, head_results, settings) for surface in surfaces]
    return CasesLeftOut(
        frozenset().union(*(one.left_out for one in found)),
        sum(one.unsure for one in found),
        sum(one.learning for one in found),
    )


def _spared_of(
    surface: Surface, head_results: Mapping[str, HeadResult], settings: SamplingSettings
) -> CasesLeftOut:
    known, budget = _known(surface, head_results, settings)
    found = next_round(surface.points, known, budget, settings.tolerance)
    is_left = ~known.requested
    is_left[found.points_to_measure] = False
    left = np.flatnonzero(is_left)
    unsure = int(np.sum(found.half_widths[left] > np.log1p(settings.tolerance)))
    return CasesLeftOut(
        frozenset(surface.case_ids[at] for at in left), unsure, len(found.points_to_measure)
    )


def _known(
    surface: Surface, head_results: Mapping[str, HeadResult], settings: SamplingSettings
) -> tuple[Known, PointBudget]:
    """Return the known points of a surface.

    Case ids are hashes, so the first ids are a random sample."""
    values = [head_results.get(case_id) for case_id in surface.case_ids]
    budget = PointBudget(int(settings.share * len(values)))
    known = Known(
        requested=np.array([result is not None for result in values]),
        duration_us=np.array([_duration_us(result) for result in values], np.float64),
        checks=np.arange(len(values)) < budget.checks,
    )
    return known, budget


def _duration_us(result: HeadResult | None) -> float:
    """Return the duration of a good result. Suspect results are used too.

    A suspect duration is a few percent off, and its case is measured again anyway."""
    return (result.mean_us or np.nan) if result is not None and result.is_good else np.nan


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


# Which cases a plan measures a second time, in separate shards: in other sessions and, with several
# devices, mostly on other devices. The differences are the basis of the intervals.
#
# The cases are drawn by a pseudo-random choice that follows from the plan, not from knowledge of a
# case, and equally often from each decade of durations. A worker cannot recognise them. Pure.

_OF_DECADE = 12  # more cases of one decade would add little information
_LEAST_REPEATED = 12  # cases of a small plan, for which the share alone would give one or two
_FEWEST = 4  # fewer cases do not justify a session
_COST_SHARE = 0.03  # of the plan's time in cases
_ALL_SHARE = 0.048  # of the plan's time, with session starts; canaries take the rest
_MOST_SHARDS = 12

NO_LANES: Mapping[str, int] = MappingProxyType({})


def repeated_shards(
    priced: Sequence[PricedCase],
    share: float,
    *,
    total_s: float,
    start_s: float,
    token: object,
    lanes: Mapping[str, int] = NO_LANES,
) -> list[list[PricedCase]]:
    """Return the cases to measure a second time, as the shards that hold them.

    More sessions give more information. With their starts of `start_s` each, they cost at most 4.8
    % of the plan's `total_s`, or more if the share is above the default; each has at least four
    cases. Cases that one device should measure first (`lanes` maps case ids to devices) are
    together, so that the shard can go to another device.

    Example: for a plan of 120 s and a session start of 5 s, the budget of 5.76 s pays for one
    session and cases of 0.76 s."""
    budget_s = _ALL_SHARE * _more(share) * total_s
    cases = repeated_cases(priced, share, token, most_s=budget_s - start_s)
    affordable = int((budget_s - fsum(item.cost_s for item in cases)) / start_s)
    count = min(affordable, _MOST_SHARDS, len(cases) // _FEWEST)
    if not count:
        return []
    by_lane = sorted(cases, key=lambda item: lanes.get(item.candidate.record.case_id, 0))
    if len(set(lanes.values())) > 1:
        ends = [len(cases) * end // count for end in range(count + 1)]
        return [by_lane[begin:end] for begin, end in pairwise(ends)]
    dealt = shard_cutting.longest_first([item.cost_s for item in cases], count)
    return [[cases[at] for at in shard] for shard in dealt]


def repeated_cases(
    priced: Sequence[PricedCase], share: float, token: object, most_s: float = inf
) -> list[PricedCase]:
    """Return the cases to measure a second time, all with the same number of ranks.

    The number is this share of the cases: at least twelve of a small plan, at most twelve per
    decade. They cost no more than 3 % of all and no more than `most_s`. The limits of twelve per
    decade and 3 % grow with a share above the default. `token` determines which cases are chosen.
    """
    able = [item for item in priced if item.launch_s > 0]
    more = _more(share)
    repeat_count = max(ceil(share * len(able)), _LEAST_REPEATED) if share else 0
    left_s = min(_COST_SHARE * more * fsum(item.cost_s for item in priced), most_s)
    chosen: list[PricedCase] = []
    for item in _by_turns(able, ceil(_OF_DECADE * more), token):
        if len(chosen) == repeat_count:
            break
        if item.cost_s <= left_s:
            left_s -= item.cost_s
            chosen.append(item)
    return chosen


def _more(share: float) -> float:
    return max(1.0, share / REPEAT_SHARE)


def _by_turns(able: Sequence[PricedCase], most: int, token: object) -> Iterator[PricedCase]:
    """Yield one case of each decade in turn, shortest decade first, at most `most` of each."""
    decades: dict[int, list[PricedCase]] = {}
    for item in sorted(able, key=lambda item: short_hash([item.candidate.record.case_id, token])):
        decades.setdefault(floor(log10(item.launch_s)), []).append(item)
    turns = zip_longest(*(decades[decade][:most] for decade in sorted(decades)))
    return (item for turn in turns for item in turn if item is not None)


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
