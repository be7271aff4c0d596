"""Cases cut into shards: equal ones, and as many as keep every device busy to the end. Pure.

Gangs come first, those of most ranks before the others: while no device has work of its own yet,
none has to wait until the others of its gang are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, fsum

from collector.canonical import sha256_hex, short_hash
from collector.plan import ShardSettings, devices_for
from collector.shard import ShardCase, write_shard
from jobs.planning.candidates import PricedCase
from jobs.planning.forecast import GANG_START_S, SessionCost
from jobs.planning.packing import longest_first, pack

# Shorter shards follow the devices' real speed better; below this their start-up weighs too much.
_SHORTEST_SHARD_S = 180.0
GANG_COST = SessionCost(GANG_START_S)  # ranks have no canaries


@dataclass(frozen=True, slots=True)
class CutShard:
    """A shard, its table, and the ids of its cases. `start_s` is when its devices should come to
    it, if every forecast holds, and `lane` which device that should be. One that measures cases a
    second time has the shards in which they stand for the first in `again_of`, and one of what was
    doubted the place that measured it."""

    shard_id: str
    table: bytes
    cases: int
    predicted_s: float
    start_s: float
    ranks: int = 1
    case_ids: tuple[str, ...] = ()
    lane: int = 0
    again_of: tuple[str, ...] = ()
    not_on: str = ""


def device_s(shards: Sequence[CutShard], backend: str) -> float:
    """The device-seconds of shards, by forecast."""
    return fsum(s.predicted_s * devices_for(s.ranks, backend) for s in shards)


def cut_shards(
    priced: Sequence[PricedCase],
    settings: ShardSettings,
    devices: int,
    cost: SessionCost,
    *,
    answers_hash: str,
) -> list[CutShard]:
    """All shards in the order in which they should begin. `cost` is that of a session beside its
    cases; `answers_hash` tells what else than them makes a shard's answers what they are."""
    gangs = cut_gangs([item for item in priced if item.ranks > 1], settings, answers_hash)
    begin_s = max((gang.start_s + gang.predicted_s for gang in gangs), default=0.0)
    singles = [item for item in priced if item.ranks == 1]
    return gangs + _cut_singles(singles, settings, devices, cost, begin_s, answers_hash)


def cut_gangs(
    priced: Sequence[PricedCase], settings: ShardSettings, answers_hash: str
) -> list[CutShard]:
    """The gangs, one after the other: none is measured beside another one. Cases of one shard share
    their number of ranks."""
    by_ranks: dict[int, list[PricedCase]] = {}
    for item in priced:
        by_ranks.setdefault(item.ranks, []).append(item)
    cut: list[CutShard] = []
    begin_s = 0.0
    for ranks, items in sorted(by_ranks.items(), reverse=True):
        costs = [item.cost_s for item in items]
        for dealt in longest_first(costs, ceil(fsum(costs) / settings.target_s)):
            members = _in_order([items[at] for at in dealt])
            lasts_s = _shard_s(members, settings.session_s, GANG_COST)
            cut.append(_shard(members, lasts_s, begin_s, answers_hash, ranks))
            begin_s += lasts_s
    return cut


def _cut_singles(
    priced: Sequence[PricedCase],
    settings: ShardSettings,
    devices: int,
    cost: SessionCost,
    begin_s: float,
    answers_hash: str,
) -> list[CutShard]:
    """The shards of single devices, from `begin_s` on.

    Handing shards out by their planned start gives every device its own ones, as long as the
    forecasts hold; where they do not, the next free device takes over.
    """
    costs = [item.cost_s for item in priced]
    groups: dict[str, list[int]] = {}
    for index, item in enumerate(priced):
        groups.setdefault(item.group, []).append(index)
    count = shards_a_device(fsum(costs), devices, settings, cost.start_s)
    cut = []
    for lane, device in enumerate(pack(list(groups.values()), costs, devices, count).devices):
        members = [_in_order([priced[index] for index in shard]) for shard in device]
        lasts = [_shard_s(shard, settings.session_s, cost) for shard in members]
        starts = accumulate(lasts[:-1], initial=begin_s)
        of_device = zip(members, lasts, starts, strict=True)
        cut += [replace(_shard(*facts, answers_hash), lane=lane) for facts in of_device]
    return sorted(cut, key=lambda shard: (shard.start_s, -shard.predicted_s, shard.shard_id))


def cut_repeats(
    repeated: Sequence[Sequence[PricedCase]],
    settings: ShardSettings,
    cost: SessionCost,
    begin_s: float,
    answers_hash: str,
    once: Sequence[CutShard],
) -> list[CutShard]:
    """The shards of cases that are measured a second time, from `begin_s` on, each of as many
    ranks. They are none of those in which the same cases are measured `once`."""
    again_hash = short_hash([answers_hash, "again"])
    cut = []
    for shard in repeated:
        ranks = shard[0].ranks
        lasts_s = _shard_s(shard, settings.session_s, cost if ranks == 1 else GANG_COST)
        made = _shard(_in_order(shard), lasts_s, begin_s, again_hash, ranks)
        first = (one.shard_id for one in once if not set(made.case_ids).isdisjoint(one.case_ids))
        cut.append(replace(made, again_of=tuple(first)))
    return cut


def cut_elsewhere(
    found: Sequence[tuple[str, Sequence[PricedCase]]],
    settings: ShardSettings,
    cost: SessionCost,
    answers_hash: str,
) -> list[CutShard]:
    """The shards of cases that shall not be measured at a place again, those of each by themselves
    and of about one session: whichever devices are free share them."""
    cut = []
    for place, items in found:
        costs = [item.cost_s for item in items]
        for dealt in longest_first(costs, ceil(fsum(costs) / settings.session_s)):
            members = _in_order([items[at] for at in dealt])
            lasts_s = _shard_s(members, settings.session_s, cost)
            cut.append(replace(_shard(members, lasts_s, 0.0, answers_hash), not_on=place))
    return cut


def shards_a_device(total_s: float, devices: int, settings: ShardSettings, start_s: float) -> int:
    """How many shards each device gets, for `total_s` of work and `start_s` to start a shard."""
    count = max(1, ceil(total_s / (devices * settings.target_s)))
    if settings.target_s < _SHORTEST_SHARD_S:
        return count
    while total_s / (devices * 2 * count) + start_s >= _SHORTEST_SHARD_S:
        count *= 2
    return count


def rounded(seconds: float) -> float:
    """To the millisecond: a forecast is no better than that, and its text stays short."""
    return round(seconds, 3)


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


def _shard_s(shard: Sequence[PricedCase], session_s: float, cost: SessionCost) -> float:
    """The cases, and what every session that they need takes beside them."""
    work_s = fsum(item.cost_s for item in shard)
    return work_s + cost.of_sessions(work_s, session_s)


def _shard(
    cases: Sequence[PricedCase],
    predicted_s: float,
    start_s: float,
    answers_hash: str,
    ranks: int = 1,
) -> CutShard:
    table = write_shard(ShardCase(item.candidate.planned_record, item.cost_s) for item in cases)
    shard_id = short_hash([sha256_hex(table), answers_hash])
    ids = tuple(item.candidate.record.case_id for item in cases)
    return CutShard(shard_id, table, len(cases), rounded(predicted_s), start_s, ranks, ids)
