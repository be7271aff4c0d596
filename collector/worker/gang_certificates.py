"""From what the ranks of a gang saw of each case to its certificate. Pure."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from collector.comm.kernel_identity import OTHERWISE, least
from collector.comm.measured import group_timings, settings_of
from collector.comm.rank_files import TOO_LARGE, CaseSeen, wrong_result
from collector.comm.timing import (
    CollectiveTiming,
    call_durations_us,
    relative_spread,
)
from collector.measurement import Measurement, Outcome, Provenance
from collector.ops.floor import floor_us
from collector.plan import Limits
from collector.quality.gates import doubts, implausible, no_duration
from collector.quality.statistics import summarise
from collector.record import CaseRecord
from collector.stack import Stack

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class GangSession:
    """A bench and what its cases are to the plan, in the order of the bench: the groups of ranks
    that work in each, and what is known of it besides, by name. `rounds` are planned."""

    records: tuple[CaseRecord, ...]
    groups: tuple[Groups, ...]
    facts: tuple[tuple[tuple[str, float], ...], ...]
    rounds: int
    provenance: Provenance
    stack: Stack
    limits: Limits
    started_at: str
    ended_at: str


def certificates(
    session: GangSession,
    seen: Sequence[CaseSeen],
    environment: Mapping[str, str] = os.environ,
) -> tuple[Measurement, ...]:
    """A measurement of each case that at least one round has seen."""
    rounds: dict[int, list[CaseSeen]] = {}
    for one in seen:
        rounds.setdefault(one.case, []).append(one)
    return tuple(_certificate(session, at, found, environment) for at, found in rounds.items())


def _certificate(
    session: GangSession, at: int, seen: Sequence[CaseSeen], environment: Mapping[str, str]
) -> Measurement:
    record = session.records[at]
    made = Measurement(
        record.case_id,
        record.case.kernel_type,
        Outcome.OK,
        "",
        session.provenance,
        started_at=session.started_at,
        ended_at=session.ended_at,
    )
    timed = [one for one in seen if not one.left_out]
    if not timed:
        return replace(made, outcome=_left_out(seen[0].left_out), reason=seen[0].left_out)
    groups = session.groups[at]
    calls_us = [us for one in timed for us in _calls_us(one, groups)]
    made = replace(made, n_expected=len(calls_us), n_observed=len(calls_us))
    limit_us = session.limits.case_s * 1e6
    if fault := next(filter(None, (no_duration(us, limit_us) for us in calls_us)), ""):
        return replace(made, outcome=Outcome.IMPLAUSIBLE, reason=fault)
    found = summarise(calls_us)
    least_us = floor_us(record.case, session.stack)
    fault = implausible(found.timing.mean_us, floor_us=least_us, limit_us=limit_us)
    doubt = wrong_result(seen)
    outcome = Outcome.IMPLAUSIBLE if fault else Outcome.GATED if doubt else Outcome.OK
    return replace(
        made,
        outcome=outcome,
        reason=fault or doubt,
        identity=least(one.identity for one in timed),
        n_accepted=len(found.accepted_us),
        timing=found.timing,
        counters=(
            *_counters(
                [group_timings(groups, one) for one in timed],
                [us for one in timed for us in _calls_us(one, groups, slowest=True)],
            ),
            *session.facts[at],
        ),
        warnings=(
            *doubts(found.timing, len(found.accepted_us)),
            *_of_rounds(len(timed), session.rounds),
            *(f"set where it ran: {one}" for one in settings_of(environment)),
        ),
    )


def _left_out(reason: str) -> Outcome:
    outcomes = {TOO_LARGE: Outcome.OOM, OTHERWISE: Outcome.SUBSTITUTED}
    found = (outcome for begin, outcome in outcomes.items() if reason.startswith(begin))
    return next(found, Outcome.PROFILER_LOST)


def _calls_us(seen: CaseSeen, groups: Groups, *, slowest: bool = False) -> list[float]:
    """What each call took: of several groups at once the median over them, or the slowest's."""
    by_rank = {one.rank: one for one in seen.ranks}
    own = np.array([call_durations_us([by_rank[rank] for rank in ranks]) for ranks in groups])
    return [float(us) for us in (own.max(axis=0) if slowest else np.median(own, axis=0))]


def _counters(
    rounds: Sequence[tuple[CollectiveTiming, ...]], slowest_us: Sequence[float]
) -> tuple[tuple[str, float], ...]:
    """What a row of a collective tells besides, by the columns of its file."""
    every = [group for groups in rounds for group in groups]
    medians_us = [median(group.duration_us for group in groups) for groups in rounds]
    return (
        ("rounds", float(len(rounds))),
        ("round_spread", relative_spread(medians_us)),
        ("max_us", max(group.max_us for group in every)),
        ("rank_min_us", min(group.rank_min_us for group in every)),
        ("rank_max_us", max(group.rank_max_us for group in every)),
        ("skew_us", max(group.skew_us for group in every)),
        ("concurrent_groups", float(len(rounds[0]))),
        ("concurrent_slowest_us", median(slowest_us)),
    )


def _of_rounds(found: int, planned: int) -> tuple[str, ...]:
    return (f"{found} of {planned} rounds",) if found < planned else ()
