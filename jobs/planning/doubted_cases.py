"""Which cases of doubtful sessions a round measures again: those that a bounded time pays for, each
away from the place that measured it. Pure."""

from collections.abc import Mapping, Sequence
from math import ceil, fsum

from collector.plan import ShardSettings
from jobs.planning.candidates import PricedCase
from jobs.planning.forecast import SessionCost


def within_their_time(
    priced: Sequence[PricedCase],
    places: Mapping[str, str],
    budget_s: float,
    settings: ShardSettings,
    cost: SessionCost,
) -> list[tuple[str, list[PricedCase]]]:
    """Of the priced cases those that `budget_s` pays for with the sessions that they need, the
    shortest first, by the place that each was measured at; `cost` is that of a session beside its
    cases.

    Example: 30 s pay for a session that takes 10 s to start and five cases of 4 s of one place; of
    two places they pay for two sessions, and for two cases.
    """
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
    """What cases of one place take, in shards of about one session each."""
    shards = max(1, ceil(work_s / settings.session_s))
    return work_s + shards * cost.of_sessions(work_s / shards, settings.session_s)
