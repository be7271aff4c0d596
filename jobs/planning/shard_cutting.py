"""Cutting of cases into equal shards that keep every device busy to the end. Pure.

Gangs come first, those with the most ranks before the others: no device has other work yet, so no
device has to wait for the rest of its gang.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum

from collector.codec.canonical import sha256_hex, short_hash
from collector.model.demand import Urgency
from collector.model.plan import ShardCase, ShardSettings, devices_for, write_shard
from jobs.planning.candidates import PricedCase
from jobs.planning.forecast import SessionCost

# Packing of cases into shards, so that every device is busy until the last one ends.
#
# Costs of cases span five decades; shards of equal counts leave most devices waiting for a few. So
# pieces are dealt longest first to the least loaded device (LPT), and each device's pieces, the
# same way, to its shards. A group shares an expensive set-up and stays in one piece, unless it
# exceeds a shard, or whole groups would leave devices idle: then the maximum size of a piece is
# halved until the devices balance. Pure and deterministic: costs in, indices out.

# The balance of devices decides the wall time. The balance of shards decides only how evenly work
# is handed out, for which whole groups are worth more.
_DEVICES_BALANCED = 0.99
_SHARDS_BALANCED = 0.9
_HALVINGS = 5

Shard = tuple[int, ...]  # indices of items


@dataclass(frozen=True, slots=True)
class Packing:
    """Shards by device: `devices[d]` holds the shards of device d, longest first.

    The two ratios are the ideal, max(mean, largest item), over the longest device and the longest
    shard."""

    devices: tuple[tuple[Shard, ...], ...]
    device_balance: float
    shard_balance: float

    @property
    def is_balanced(self) -> bool:
        return self.device_balance >= _DEVICES_BALANCED and self.shard_balance >= _SHARDS_BALANCED


def pack(
    groups: Sequence[Sequence[int]], costs: Sequence[float], devices: int, shards: int
) -> Packing:
    """Deal the items of `groups` (indices into `costs`) to `devices`, `shards` to each.

    Every item is in exactly one shard; a device or shard that would be empty is left out."""
    shard_cost = fsum(costs) / (devices * shards)
    sizes = [shard_cost / 2**halving for halving in range(_HALVINGS)]
    best = Packing((), 0.0, 0.0)
    for size in (*sizes, 0.0):
        packing = _deal(_pieces(groups, costs, size), costs, devices, shards)
        if packing.is_balanced:
            return packing
        best = max(best, packing, key=_worth)
    return best


def longest_first(costs: Sequence[float], bins: int) -> list[list[int]]:
    """Return the indices of `costs` in at most `bins` lists of about equal sums, none empty.

    LPT: within 4/3 - 1/(3 bins) of the optimum. Among equal loads an item goes to the bin with
    fewer items, so that items without cost spread too."""
    dealt: list[list[int]] = [[] for _ in range(min(bins, len(costs)))]
    groups_by_load = [(0.0, 0, index) for index in range(len(dealt))]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, count, index = groups_by_load[0]
        dealt[index].append(item)
        heapq.heapreplace(groups_by_load, (load + costs[item], count + 1, index))
    return dealt


def _worth(packing: Packing) -> tuple[float, float]:
    """Return the sort key of a packing: greater is better, and the first of equals splits less."""
    return (min(packing.device_balance, _DEVICES_BALANCED), packing.shard_balance)


def _pieces(
    groups: Sequence[Sequence[int]], costs: Sequence[float], size: float
) -> list[Sequence[int]]:
    """Return the groups, those above `size` in equal parts; single items for size 0."""
    pieces: list[Sequence[int]] = []
    for group in groups:
        cost = fsum(costs[item] for item in group)
        if cost <= size:
            pieces.append(group)
            continue
        parts = ceil(cost / size) if size > 0 else len(group)
        dealt = longest_first([costs[item] for item in group], parts)
        pieces.extend([group[position] for position in part] for part in dealt)
    return pieces


def _deal(
    pieces: Sequence[Sequence[int]], costs: Sequence[float], devices: int, shards: int
) -> Packing:
    """Deal pieces to devices, then each device's pieces to its shards."""
    piece_costs = [fsum(costs[item] for item in piece) for piece in pieces]
    dealt = []
    for device in longest_first(piece_costs, devices):
        parts = longest_first([piece_costs[piece] for piece in device], shards)
        members = [[item for at in part for item in pieces[device[at]]] for part in parts]
        dealt.append(tuple(tuple(shard) for shard in members))
    return _measured(tuple(dealt), costs, devices, shards)


def _measured(
    dealt: tuple[tuple[Shard, ...], ...], costs: Sequence[float], devices: int, shards: int
) -> Packing:
    loads = [[fsum(costs[item] for item in shard) for shard in device] for device in dealt]
    total, largest = fsum(costs), max(costs, default=0.0)
    longest_device = max(map(fsum, loads), default=0.0)
    longest_shard = max((load for device in loads for load in device), default=0.0)
    ordered = tuple(_longest_shard_first(*pair) for pair in zip(dealt, loads, strict=True))
    return Packing(
        devices=ordered,
        device_balance=_ratio(max(total / devices, largest), longest_device),
        shard_balance=_ratio(max(total / (devices * shards), largest), longest_shard),
    )


def _longest_shard_first(device: tuple[Shard, ...], loads: Sequence[float]) -> tuple[Shard, ...]:
    order = sorted(range(len(device)), key=lambda i: (-loads[i], i))
    return tuple(device[i] for i in order)


def _ratio(ideal: float, real: float) -> float:
    return ideal / real if real > 0 else 1.0


# Short shards adapt better to the real speed of the devices; below this, start-up costs too much.
_SHORTEST_SHARD_S = 180.0


@dataclass(frozen=True, slots=True)
class CutShard:
    """A shard, its table, and the ids of its cases.

    `start_s` is when its devices should start it if every forecast holds, and `lane` the planned
    device. A shard that measures cases a second time lists in `again_of` the shards that measure
    them first. A shard of suspect cases has in `not_on` the device or node that measured them."""

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
    return fsum(s.predicted_s * devices_for(s.ranks, backend) for s in shards)


@dataclass(frozen=True, slots=True)
class Cutter:
    """Cuts cases into shards.

    `cost` is the overhead of a session besides its cases. `results_hash` hashes the other inputs
    that determine the results of a shard."""

    settings: ShardSettings
    cost: SessionCost
    results_hash: str

    def cut(self, priced: Sequence[PricedCase], devices: int) -> list[CutShard]:
        """Return all shards in the order in which they should start."""
        cut = self._gangs([item for item in priced if item.ranks > 1])
        for items in self._by_urgency([item for item in priced if item.ranks == 1], devices):
            begin_s = max((shard.start_s + shard.predicted_s for shard in cut), default=0.0)
            cut += self._singles(items, devices, begin_s)
        return cut

    def _by_urgency(self, priced: list[PricedCase], devices: int) -> list[list[PricedCase]]:
        """Return the cases of each urgency, the most urgent first, those that no query requests
        with the last; all together if they are too short for sessions of their own."""
        if fsum(item.cost_s for item in priced) < _SHORTEST_SHARD_S * devices:
            return [priced]
        tiers: dict[Urgency, list[PricedCase]] = {urgency: [] for urgency in Urgency}
        for item in priced:
            tiers[item.candidate.weight.urgency or Urgency.RARE].append(item)
        return [items for items in tiers.values() if items]

    def repeats(
        self, repeated: Sequence[Sequence[PricedCase]], begin_s: float, once: Sequence[CutShard]
    ) -> list[CutShard]:
        """Return the shards that measure cases a second time, from `begin_s` on.

        Each has cases of one number of ranks. They differ from the shards that measure the cases
        `once`, and from each other."""
        cut = []
        times: Counter[tuple[str, ...]] = Counter()
        for shard in repeated:
            members = _in_order(shard)
            cases = tuple(item.candidate.record.case_id for item in members)
            nth = [times[cases]] if times[cases] else []
            times[cases] += 1
            again = replace(self, results_hash=short_hash([self.results_hash, "again", *nth]))
            made = again._shard(members, begin_s)
            first = (s.shard_id for s in once if not set(made.case_ids).isdisjoint(s.case_ids))
            cut.append(replace(made, again_of=tuple(first)))
        return cut

    def suspects(self, found: Sequence[tuple[str, Sequence[PricedCase]]]) -> list[CutShard]:
        """Return the shards of cases that a given device or node must not measure again.

        Each shard has the cases of one such device or node and takes about one session. Any free
        device runs them."""
        return [
            replace(self._shard(members, 0.0), not_on=place)
            for place, items in found
            for members in parts_of(items, self.settings.session_s)
        ]

    def _gangs(self, priced: Sequence[PricedCase]) -> list[CutShard]:
        """Return the gangs, which run one after the other, never two concurrently.

        Cases of one shard share their number of ranks."""
        by_ranks: dict[int, list[PricedCase]] = {}
        for item in priced:
            by_ranks.setdefault(item.ranks, []).append(item)
        cut: list[CutShard] = []
        begin_s = 0.0
        for _, items in sorted(by_ranks.items(), reverse=True):
            for members in parts_of(items, self.settings.target_s):
                cut.append(self._shard(members, begin_s))
                begin_s += self._lasts_s(members)
        return cut

    def _singles(
        self, priced: Sequence[PricedCase], devices: int, begin_s: float
    ) -> list[CutShard]:
        """Return the shards of single devices, from `begin_s` on.

        Shards are handed out by planned start, so that every device gets its own shards while the
        forecasts hold; otherwise the next free device takes over."""
        costs = [item.cost_s for item in priced]
        devices = devices_worth_starting(fsum(costs), devices, self.settings, self.cost.start_s)
        groups: dict[str, list[int]] = {}
        for index, item in enumerate(priced):
            groups.setdefault(item.group, []).append(index)
        count = shards_a_device(fsum(costs), devices, self.settings, self.cost.start_s)
        cut = []
        for lane, device in enumerate(pack(list(groups.values()), costs, devices, count).devices):
            start_s = begin_s
            for shard in device:
                members = _in_order([priced[index] for index in shard])
                cut.append(replace(self._shard(members, start_s), lane=lane))
                start_s += self._lasts_s(members)
        return sorted(cut, key=lambda shard: (shard.start_s, -shard.predicted_s, shard.shard_id))

    def _lasts_s(self, shard: Sequence[PricedCase]) -> float:
        work_s = fsum(item.cost_s for item in shard)
        cost = self.cost if shard[0].ranks == 1 else self.cost.of_gangs
        return work_s + cost.of_sessions(work_s, self.settings.session_s, len(shard))

    def _shard(self, cases: Sequence[PricedCase], start_s: float) -> CutShard:
        table = write_shard(ShardCase(item.candidate.planned_record, item.cost_s) for item in cases)
        return CutShard(
            short_hash([sha256_hex(table), self.results_hash]),
            table,
            len(cases),
            rounded(self._lasts_s(cases)),
            start_s,
            cases[0].ranks,
            tuple(item.candidate.record.case_id for item in cases),
        )


def parts_of(items: Sequence[PricedCase], most_s: float) -> Iterator[list[PricedCase]]:
    """Yield the items in shards of about equal cost, as many as take `most_s` each."""
    costs = [item.cost_s for item in items]
    for dealt in longest_first(costs, ceil(fsum(costs) / most_s)):
        yield _in_order([items[at] for at in dealt])


def devices_worth_starting(
    total_s: float, devices: int, settings: ShardSettings, start_s: float
) -> int:
    """Return how many devices measure `total_s` of work: only as many as each measure for as long
    as a session takes to start, or as a shard may last if that is shorter.

    More of them would at most halve the wall time, and take longer to start than to measure.

    Example: 60 s of work and 40 s per start have one device, 100 s two of 90 s each."""
    of_starts = int(total_s / start_s) if start_s > 0 else devices
    return min(devices, max(1, of_starts, ceil(total_s / settings.target_s)))


def shards_a_device(total_s: float, devices: int, settings: ShardSettings, start_s: float) -> int:
    """Return the number of shards per device, for `total_s` of work and `start_s` per start."""
    count = max(1, ceil(total_s / (devices * settings.target_s)))
    if settings.target_s < _SHORTEST_SHARD_S:
        return count
    while total_s / (devices * 2 * count) + start_s >= _SHORTEST_SHARD_S:
        count *= 2
    return count


def rounded(seconds: float) -> float:
    """Return the seconds rounded to milliseconds: a forecast is no more exact."""
    return round(seconds, 3)


def _in_order(shard: Sequence[PricedCase]) -> list[PricedCase]:
    """Return the cases of a shard in the order of measurement.

    Groups stay together, so that they set up once. Cheap groups come first: an interrupted shard
    has then measured most of its cases, and a case that kills its session, most often a large one,
    affects the fewest neighbours."""
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
