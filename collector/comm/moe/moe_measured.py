"""What a bench of DispatchFFNCombine found of each case: its rounds and its routing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.rank_files import CaseSeen, wrong_result
from collector.comm.timing import (
    CollectiveTiming,
    call_durations_us,
    collective_timing,
    relative_spread,
)
from collector.stack import COLLECTIVE_LIBRARIES


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """`mean_us` is over all calls of all rounds, each from the arrival of its last rank to the end
    of its last rank; `timings` are of each round. `imbalance` and `rank_imbalance` are of what was
    drawn."""

    case: MoeCase
    backend: str
    mode: str
    mean_us: float
    timings: tuple[CollectiveTiming, ...]
    imbalance: float
    rank_imbalance: float

    @property
    def median_us(self) -> float:
        """The median of the rounds' medians."""
        return median(one.duration_us for one in self.timings)

    @property
    def round_spread(self) -> float:
        """How far a round's median lies from theirs, at most."""
        return relative_spread([one.duration_us for one in self.timings])


@dataclass(frozen=True, slots=True)
class MoeFound:
    """What became of a plan's cases; `failed` are those that have no number, with the reason:
    too large for a rank, or another result than one process computes."""

    measured: tuple[MeasuredCase, ...]
    failed: tuple[tuple[MoeCase, str], ...]


def moe_found(plan: MoePlan, seen: Iterable[CaseSeen]) -> MoeFound:
    """The cases of a plan from what rank 0 wrote, whole or not: one round is enough."""
    by_case: dict[int, list[CaseSeen]] = {}
    for one in seen:
        by_case.setdefault(one.case, []).append(one)
    measured: list[MeasuredCase] = []
    failed: list[tuple[MoeCase, str]] = []
    for at, rounds in sorted(by_case.items()):
        if reason := _failure(rounds):
            failed.append((plan.cases[at], reason))
        else:
            measured.append(_measured(plan, plan.cases[at], rounds))
    return MoeFound(tuple(measured), tuple(failed))


def _failure(rounds: Sequence[CaseSeen]) -> str:
    return wrong_result(rounds) or next((one.left_out for one in rounds if one.left_out), "")


def _measured(plan: MoePlan, case: MoeCase, rounds: Sequence[CaseSeen]) -> MeasuredCase:
    routing = case.routing()
    calls = np.concatenate([call_durations_us(one.ranks) for one in rounds])
    return MeasuredCase(
        case,
        COLLECTIVE_LIBRARIES[plan.backend],
        plan.mode,
        float(calls.mean()),
        tuple(collective_timing(one.ranks) for one in rounds),
        routing.imbalance,
        routing.rank_imbalance(case.call.ep_size),
    )
