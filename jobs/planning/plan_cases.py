"""The cases that a plan takes up: those it measures, those it leaves to the models of surfaces,
those it measures once more, and those it measures twice. Pure.
"""

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import ceil, floor, fsum, inf, log10, sqrt
from types import MappingProxyType

import numpy as np

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.model.case import Case
from collector.model.plan import Forecast, devices_for
from collector.model.stack import Stack
from collector.ops.refusals import UNFORESEEN, FindOperator, refusal
from collector.ranks.gangs import is_of_gangs
from collector.surface.rounds import LEAST_BUDGET, Budget, Known, next_round
from collector.surface.surrogate import Floats, Points
from jobs.campaign.campaign_file import REPEAT_SHARE, Campaign, DensitySettings
from jobs.planning.candidates import (
    Candidate,
    HeadAnswer,
    PricedCase,
    SourceRecords,
    price,
    still_missing,
)
from jobs.planning.forecast import Peaks, SessionCost
from jobs.planning.shard_cutting import (
    GANG_COST,
    CutShard,
    device_s,
    longest_first,
    shards_a_device,
)

# The curves of a campaign: cases of one kernel that differ in their sizes alone, as points of a
# surface whose durations can be learnt from some of them. Pure.

# Whose tiles share how many cores is not known of every device; trees find the steps of another.
_CORES = 24


@dataclass(frozen=True, slots=True)
class Surface:
    """Cases that differ in their sizes alone, by the order of their ids, and their points."""

    case_ids: tuple[str, ...]
    points: Points


def _alike(case: Case) -> tuple[str, Hashable, Hashable, str, tuple[tuple[str, str], ...]]:
    """What cases share that differ in their sizes alone."""
    inputs, outputs = (
        tuple((slot.dtype, slot.format, len(slot.shape or ())) for slot in slots or ())
        for slots in (case.inputs, case.outputs)
    )
    return case.kernel_type, inputs, outputs, case.op_state, case.attributes


def _sizes(case: Case) -> list[int]:
    """All lengths of a case's tensors, those of its outputs first."""
    slots = (*(case.outputs or ()), *(case.inputs or ()))
    return [size for slot in slots for size in slot.shape or ()]


def find_surfaces(
    cases: Iterable[tuple[str, Case]], find: FindOperator, backend: str, least: int
) -> list[Surface]:
    """The surfaces of at least so many points among cases, by id. What runs over ranks, what no
    device would run, and what has an empty tensor is on none."""
    groups: dict[Hashable, list[tuple[str, Case]]] = defaultdict(list)
    for case_id, case in cases:
        if case.inputs is not None and not is_of_gangs(case):
            groups[_alike(case)].append((case_id, case))
    large = (sorted(group) for group in groups.values() if len(group) >= least)
    found = (_surface(group, find, backend) for group in large)
    return [surface for surface in found if len(surface.case_ids) >= least]


def _surface(group: Sequence[tuple[str, Case]], find: FindOperator, backend: str) -> Surface:
    ids, lengths, work = [], [], []
    for case_id, case in group:
        told = _work(case, find, backend)
        of_case = _sizes(case)
        if told is not None and min(of_case, default=0) > 0:
            ids.append(case_id)
            lengths.append(of_case)
            work.append(told)
    if not ids:
        return Surface((), Points(np.empty((0, 0)), np.empty(0), np.empty(0), _CORES))
    operations, traffic = np.maximum(np.array(work, np.float64), 1.0).T
    return Surface(tuple(ids), Points(_axes(lengths), operations, traffic, _CORES))


def _work(case: Case, find: FindOperator, backend: str) -> tuple[float, float] | None:
    """Operations and bytes of a launch; None where no device will run it, or nobody knows."""
    op = find(case.kernel_type)
    if op is None or refusal(case, find, backend) is not None:
        return None
    try:
        return op.flops(case), op.traffic(case)
    except UNFORESEEN:
        return None


def _axes(lengths: Sequence[Sequence[int]]) -> Floats:
    """The lengths that tell points apart, each once."""
    columns = np.array(lengths, np.float64).T
    told: list[Floats] = []
    for column in columns:
        if np.ptp(column) > 0 and not any(np.array_equal(column, known) for known in told):
            told.append(column)
    return np.stack(told or [columns[0]], axis=1)


# Which cases of a campaign's curves a round measures, where the model of each surface is to tell
# the others. Pure, and without memory: what is answered decides what comes next.


@dataclass(frozen=True, slots=True)
class Spared:
    """The cases that a round leaves out; `unsure` of them are not known to the tolerance. It asks
    for `learning` cases of surfaces: another round follows those."""

    left_out: frozenset[str] = frozenset()
    unsure: int = 0
    learning: int = 0


def spared(
    candidates: Sequence[Candidate],
    answered: Mapping[str, HeadAnswer],
    settings: DensitySettings,
    find: FindOperator,
    backend: str,
) -> Spared:
    """What the next round leaves out of the candidates. What is on no surface large enough to be
    learnt is left in.

    Example: of a curve of 1,000 cases and a share of 25 % the first round asks for 110 that teach
    and 50 that check how well the others are known, and leaves out 840. Two more ask for 90 between
    them where the model is unsure, unless it is sure before.
    """
    cases = (
        (candidate.record.case_id, candidate.record.case)
        for candidate in candidates
        if not candidate.weight.in_tree or candidate.record.case_id in answered
    )
    least = int(np.ceil(LEAST_BUDGET / settings.share))
    return _together(
        [
            _spared_of(surface, answered, settings)
            for surface in find_surfaces(cases, find, backend, least)
        ]
    )


def _together(found: Sequence[Spared]) -> Spared:
    return Spared(
        frozenset().union(*(one.left_out for one in found)),
        sum(one.unsure for one in found),
        sum(one.learning for one in found),
    )


def _spared_of(
    surface: Surface, answered: Mapping[str, HeadAnswer], settings: DensitySettings
) -> Spared:
    known, budget = _known(surface, answered, settings)
    found = next_round(surface.points, known, budget, settings.tolerance)
    is_left = ~known.asked
    is_left[found.ask] = False
    left = np.flatnonzero(is_left)
    unsure = int(np.sum(found.half_widths[left] > np.log1p(settings.tolerance)))
    return Spared(frozenset(surface.case_ids[at] for at in left), unsure, len(found.ask))


def _known(
    surface: Surface, answered: Mapping[str, HeadAnswer], settings: DensitySettings
) -> tuple[Known, Budget]:
    """What is known of a surface. Case ids are hashes: the first so many are drawn by chance."""
    told = [answered.get(case_id) for case_id in surface.case_ids]
    budget = Budget(int(settings.share * len(told)))
    known = Known(
        asked=np.array([answer is not None for answer in told]),
        duration_us=np.array([_duration_us(answer) for answer in told], np.float64),
        checks=np.arange(len(told)) < budget.checks,
    )
    return known, budget


def _duration_us(answer: HeadAnswer | None) -> float:
    """A doubted number teaches, too: it is a few percent off, and is measured again anyway."""
    return (answer.mean_us or np.nan) if answer is not None and answer.is_good else np.nan


# Which answered cases a plan measures once more under `update: precision`: those whose intervals
# one more session narrows most for the time that it takes. Pure.


def worth_their_time(
    priced: Sequence[PricedCase],
    answered: Mapping[str, HeadAnswer],
    campaign: Campaign,
    cost: SessionCost,
) -> list[PricedCase]:
    """Of the priced cases those that the campaign's budget of device time pays for, the most
    narrowed for their time first; `cost` is that of a session beside its cases. BadInput where the
    budget pays for no session."""
    budget_s = (campaign.quality.budget_device_h or 0.0) * 3600
    if budget_s <= cost.start_s:
        raise BadInput(
            f"quality.budget_device_h: {budget_s:.0f} s is too short for one case: a session takes "
            f"{cost.start_s:.0f} s to start"
        )
    chosen: list[PricedCase] = []
    of_ranks: dict[int, _Work] = {}
    for item in sorted(priced, key=lambda item: _rank(item, answered, campaign.backend)):
        more = of_ranks | {item.ranks: of_ranks.get(item.ranks, _Work()).with_one(item.cost_s)}
        whole_s = fsum(_whole_s(ranks, work, campaign, cost) for ranks, work in more.items())
        if _narrowed(item, answered) > 0 and whole_s <= budget_s:
            of_ranks = more
            chosen.append(item)
    return chosen


@dataclass(frozen=True, slots=True)
class _Work:
    """So many cases, and the seconds that they take."""

    cases: int = 0
    work_s: float = 0.0

    def with_one(self, cost_s: float) -> "_Work":
        return _Work(self.cases + 1, self.work_s + cost_s)


def _whole_s(ranks: int, work: _Work, campaign: Campaign, cost: SessionCost) -> float:
    """The device time of cases of so many ranks, with what their sessions take beside them: every
    device begins at least one, where there are cases for all of them."""
    settings, devices = campaign.shards, campaign.devices
    count = ceil(work.work_s / settings.target_s)
    if ranks == 1:
        count = devices * shards_a_device(work.work_s, devices, settings, cost.start_s)
    shards = min(work.cases, count)
    session = cost if ranks == 1 else GANG_COST
    whole_s = work.work_s + shards * session.of_sessions(work.work_s / shards, settings.session_s)
    return whole_s * devices_for(ranks, campaign.backend)


def _rank(item: PricedCase, answered: Mapping[str, HeadAnswer], backend: str) -> tuple[float, str]:
    per_s = _narrowed(item, answered) / max(_device_s(item, backend), 1e-9)
    return (-per_s, item.candidate.record.case_id)


def _narrowed(item: PricedCase, answered: Mapping[str, HeadAnswer]) -> float:
    """By how much one more session narrows a case's interval, were sessions all that it is made
    of; 0 where nothing is known of it, or where no device will run it."""
    answer = answered.get(item.candidate.record.case_id)
    if item.refusal is not None or answer is None or answer.interval is None:
        return 0.0
    sessions, reach = answer.interval.sessions, answer.interval.reach
    return reach * (1 - sqrt(sessions / (sessions + 1)))


def _device_s(item: PricedCase, backend: str) -> float:
    return item.cost_s * devices_for(item.ranks, backend)


# Which cases a plan measures a second time, in shards of their own: other sessions and, where
# there are several, mostly other devices. What they differ by is what intervals are made of.
#
# Chosen by chance that follows from the plan, not by what is known of a case, and equally often
# from each decade of durations; whoever measures them cannot tell. Pure.

_OF_DECADE = 12  # so many tell what more would not tell much better
_TO_TELL = 12  # so many are wanted of a small plan, which the share alone would give one or two
_FEWEST = 4  # fewer say nothing that pays for a session
_COST_SHARE = 0.03  # of the plan's time in cases
_ALL_SHARE = 0.048  # of the plan's time, with the starts of their sessions: canaries take the rest
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
    """The cases to measure again, as the shards that hold them. The more sessions meet, the more is
    told; but with their starts of `start_s` each they shall cost no more than 4.8 % of the plan's
    `total_s`, more with a share above the usual one, and each has four cases at least. Cases that
    one device should measure first (`lanes` says which, by their ids) stand together, so that the
    shard can go to another one.

    Example: of a plan of 120 s, where a session starts in 5 s, 5.76 s pay for one session and the
    cases of 0.76 s.
    """
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
    dealt = longest_first([item.cost_s for item in cases], count)
    return [[cases[at] for at in shard] for shard in dealt]


def repeated_cases(
    priced: Sequence[PricedCase], share: float, token: object, most_s: float = inf
) -> list[PricedCase]:
    """The cases to measure again, all of as many ranks: this share of them, at least
    twelve of a small plan and at most twelve of a decade, as long as they cost no more than 3 % of
    all, and no more than `most_s`. The two bounds before that grow with a share above the usual
    one. Which cases, follows from `token`."""
    able = [item for item in priced if item.launch_s > 0]
    more = _more(share)
    wanted = max(ceil(share * len(able)), _TO_TELL) if share else 0
    left_s = min(_COST_SHARE * more * fsum(item.cost_s for item in priced), most_s)
    chosen: list[PricedCase] = []
    for item in _by_turns(able, ceil(_OF_DECADE * more), token):
        if len(chosen) == wanted:
            break
        if item.cost_s <= left_s:
            left_s -= item.cost_s
            chosen.append(item)
    return chosen


def _more(share: float) -> float:
    return max(1.0, share / REPEAT_SHARE)


def _by_turns(able: Sequence[PricedCase], most: int, token: object) -> Iterator[PricedCase]:
    """One of each decade after the other, the shortest decade first, at most so many of each."""
    decades: dict[int, list[PricedCase]] = {}
    for item in sorted(able, key=lambda item: short_hash([item.candidate.record.case_id, token])):
        decades.setdefault(floor(log10(item.launch_s)), []).append(item)
    turns = zip_longest(*(decades[decade][:most] for decade in sorted(decades)))
    return (item for turn in turns for item in turn if item is not None)


# What a round is asked for. Pure.


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

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for what doubtful sessions measured."""
        return any((self.owed or {}).values())


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
