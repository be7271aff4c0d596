"""The experts of the tokens of each rank: drawn from a seed, the same on every rank.

The duration of a call depends on how uneven the experts' loads are: for the same shapes, the spread
is 0.14 to 2.1 of the mean in production. So imbalance is an axis of the measurement, and the drawn
imbalance is recorded with the duration. Loads are chosen first, in whole rows, and rows are then
arranged so that no token has an expert twice: the drawn imbalance is that of the loads, not an
accident.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.codec.errors import BadInput
from collector.ranks.gangs import RoutedCall

_HALVINGS = 24  # of an exponent between 0 and _STEEPEST
_STEEPEST = 64.0

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Routing:
    """A routing. `experts`: (ranks, tokens, choices), the numbers of experts, distinct for a token.
    `loads`: the rows that each expert gets from all ranks."""

    experts: NDArray[np.int32]
    loads: Counts

    @property
    def imbalance(self) -> float:
        """Return the standard deviation of the experts' loads divided by their mean: 0 if all have
        equally many rows, the root of (experts - 1) if one has all."""
        return load_imbalance(self.loads)

    def busiest_rows(self, ranks: int) -> int:
        """Return the rows of the rank that gets most."""
        return int(self.loads.reshape(ranks, -1).sum(axis=1).max())

    def rank_imbalance(self, ranks: int) -> float:
        """Return the rows of the busiest rank divided by the mean of all ranks: how much longer the
        slowest rank computes than in an even call."""
        rows = self.loads.reshape(ranks, -1).sum(axis=1)
        return float(rows.max() / rows.mean())


def load_imbalance(loads: Counts) -> float:
    """Return the coefficient of variation of loads; 0 if there are no rows."""
    mean = float(loads.mean())
    return float(loads.std() / mean) if mean else 0.0


def skewed(call: RoutedCall, seed: int, imbalance: float) -> Routing:
    """Return a routing whose loads fall by a power of their index, as near to the imbalance as
    whole rows allow; the assignment of loads to experts is drawn. At 0 each expert gets equally
    many rows, except for a remainder of one. Raises BadInput for an imbalance that no routing of
    this call has."""
    if imbalance < 0:
        raise BadInput(f"imbalance: expected at least 0, got {imbalance:g}")
    low, high = 0.0, _STEEPEST
    most = load_imbalance(_power_loads(call, high))
    if imbalance > most:
        raise BadInput(f"imbalance: expected at most {most:.3g} for {call}, got {imbalance:g}")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if load_imbalance(_power_loads(call, middle)) < imbalance:
            low = middle
        else:
            high = middle
    nearest = min(
        (_power_loads(call, exponent) for exponent in (low, high, 0.0)),
        key=lambda loads: abs(load_imbalance(loads) - imbalance),
    )
    random = np.random.default_rng(seed)
    return _laid_out(call, nearest[random.permutation(call.experts)], random)


def replayed(call: RoutedCall, seed: int, counts: Sequence[int]) -> Routing:
    """Return a routing in proportion to the rows that experts got elsewhere, such as in one layer
    of a served model. Raises BadInput for counts that no routing of this call can follow."""
    if len(counts) != call.experts:
        raise BadInput(
            f"counts: expected one for each of {call.experts} experts, got {len(counts)}"
        )
    if any(count < 0 for count in counts) or not any(counts):
        raise BadInput("counts: expected numbers >= 0 of which at least one is above 0")
    loads = _whole(np.array(counts, dtype=np.float64), call)
    return _laid_out(call, loads, np.random.default_rng(seed))


def _rows(call: RoutedCall) -> tuple[int, int]:
    """Return all rows of all ranks, and the most that one expert can get: one of each token."""
    all_tokens = call.tokens * call.ep_size
    return all_tokens * call.choices, all_tokens


def _power_loads(call: RoutedCall, exponent: float) -> Counts:
    places = np.arange(1, call.experts + 1, dtype=np.float64)
    return _whole(np.exp(-exponent * np.log(places)), call)


def _whole(weights: NDArray[np.float64], call: RoutedCall) -> Counts:
    """Return whole loads in proportion to weights, none above the most that an expert can get. The
    excess goes to the other experts, and the rest of the fractions to the largest of them."""
    rows, most = _rows(call)
    shares = np.zeros(call.experts)
    is_open = np.ones(call.experts, dtype=bool)
    while (left := rows - most * int((~is_open).sum())) > 0:
        total = float(weights[is_open].sum())
        if total > 0:
            shares[is_open] = weights[is_open] * (left / total)
        else:  # the remaining experts have no weights: share the rest evenly
            shares[is_open] = left / int(is_open.sum())
        beyond = is_open & (shares >= most)
        if not beyond.any():
            break
        shares[beyond], is_open = most, is_open & ~beyond
    shares[is_open & (shares > most)] = most
    loads: Counts = np.floor(shares + 1e-9).astype(np.int64)
    for at in np.argsort(loads - shares, kind="stable"):
        if (lacking := rows - int(loads.sum())) <= 0:
            break
        loads[at] += min(1, lacking, most - int(loads[at]))
    return loads


def _laid_out(call: RoutedCall, loads: Counts, random: np.random.Generator) -> Routing:
    """Assign the rows of each expert to consecutive tokens, cyclically: no expert has more rows
    than there are tokens, so none gets a token twice."""
    rows, tokens = _rows(call)
    order = random.permutation(call.experts)
    by_turn = np.repeat(order, loads[order]).astype(np.int32).reshape(call.choices, tokens)
    experts = by_turn.T[random.permutation(tokens)]
    return Routing(
        np.ascontiguousarray(experts).reshape(call.ep_size, call.tokens, call.choices), loads
    )
