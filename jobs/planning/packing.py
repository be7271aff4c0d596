"""Packing of cases into shards, so that every device is busy until the last one ends.

Costs of cases span five decades; shards of equal counts leave most devices waiting for a few. So
pieces are dealt longest first to the least loaded device (LPT), and each device's pieces, the
same way, to its shards. A group shares an expensive set-up and stays in one piece, unless it
exceeds a shard, or unless whole groups would leave devices idle: then the size that a piece may
have is halved until they balance. Pure and deterministic: costs in, indices out.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum

# The devices' balance decides the wall time; that of the shards only how evenly work is handed
# out, for which whole groups are worth more.
_DEVICES_BALANCED = 0.99
_SHARDS_BALANCED = 0.9
_HALVINGS = 5

Shard = tuple[int, ...]  # indices of items


@dataclass(frozen=True, slots=True)
class Packing:
    """`devices[d]` holds the shards of device d, longest first. The two ratios are the ideal,
    max(mean, largest item), over the longest device and the longest shard."""

    devices: tuple[tuple[Shard, ...], ...]
    device_balance: float
    shard_balance: float

    @property
    def is_balanced(self) -> bool:
        return self.device_balance >= _DEVICES_BALANCED and self.shard_balance >= _SHARDS_BALANCED


def pack(
    groups: Sequence[Sequence[int]], costs: Sequence[float], devices: int, shards: int
) -> Packing:
    """Items of `groups` (indices into `costs`) dealt to `devices`, `shards` to each.

    Every item is in exactly one shard; a device or shard that would be empty is left out.
    """
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
    """Indices of `costs` in at most `bins` lists of about equal sums, none of them empty.

    LPT: within 4/3 - 1/(3 bins) of the best there is. Equal loads go to the bin that holds
    fewer, so that items which cost nothing spread too.
    """
    dealt: list[list[int]] = [[] for _ in range(min(bins, len(costs)))]
    heap = [(0.0, 0, index) for index in range(len(dealt))]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, count, index = heap[0]
        dealt[index].append(item)
        heapq.heapreplace(heap, (load + costs[item], count + 1, index))
    return dealt


def _worth(packing: Packing) -> tuple[float, float]:
    """Of two packings the greater is better; of equal ones the first, which splits less, stays."""
    return (min(packing.device_balance, _DEVICES_BALANCED), packing.shard_balance)


def _pieces(
    groups: Sequence[Sequence[int]], costs: Sequence[float], size: float
) -> list[Sequence[int]]:
    """The groups, those that cost more than `size` in equal parts; single items for size 0."""
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
    """Pieces to devices, then each device's pieces to its shards."""
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
