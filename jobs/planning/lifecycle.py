"""The life cycle of a campaign's plans: continue a plan, make the next, or stop.

A plan belongs to the campaign while its inputs (sources, settings, stack) are the campaign's. The
newest such plan is continued until all of it is committed and merged. Otherwise the next plan is
made. Committed results of older plans are merged first, so that no measurement is lost and none is
made twice. Committed but damaged results are measured again by a separate plan. Cases that only
sessions with suspect canaries measured are also measured again, once. Pure: the caller reads the
store and acts.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.model.plan import Plan, PlannedShard

# A store that damages repeated measurements will damage them again: then an operator must act.
_MOST_MENDS = 3
_MEND = re.compile(r"\d+m(\d+)")
_SECOND = re.compile(r"\d+d")  # the round for cases of suspect sessions


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan and its progress.

    `committed`, `held` (by the database's head) and `damaged` may name shards of other plans too.
    """

    plan: Plan
    committed: frozenset[str]
    held: frozenset[str]
    damaged: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the shards that are not committed, in the plan's order."""
        return tuple(shard.shard_id for shard in self.plan.beyond(self.committed))

    @property
    def unmerged(self) -> tuple[str, ...]:
        """Return the committed shards that are neither in the head nor known to be damaged."""
        return tuple(s for s in self._outside if s not in self.damaged)

    @property
    def broken(self) -> tuple[str, ...]:
        """Return the committed shards that are damaged: no merge can publish them."""
        return tuple(s for s in self._outside if s in self.damaged)

    @property
    def _outside(self) -> tuple[str, ...]:
        return tuple(shard.shard_id for shard in outside(self.plan, self.committed, self.held))


def outside(plan: Plan, committed: Container[str], held: Container[str]) -> Iterator[PlannedShard]:
    """Return the committed shards of a plan that the head lacks, which are those to merge."""
    return (shard for shard in plan.beyond(held) if shard.shard_id in committed)


@dataclass(frozen=True, slots=True)
class Continue:
    """Measure the missing shards of the plan, then merge it with late results of `others`."""

    plan: Plan
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Doubted:
    """The cases of a finished plan that only suspect sessions measured.

    Each case has the device or node that measured it.
    """

    plan: Plan
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Merge these older plans, in order, then make the plan of this number.

    `round` separates its shards from earlier ones of the same cases. If `mended` is set, the plan
    measures only the cases of the shards `mends` of that plan again. If `doubted` is set, it
    measures only those cases again, on other devices or nodes.
    """

    number: int
    merge_first: tuple[int, ...]
    round: str = ""
    mended: Plan | None = None
    mends: tuple[str, ...] = ()
    doubted: Doubted | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The plan is merged and nothing has changed since.

    Merge late results of `others`, print the summary and stop. `broken` shards were damaged each
    time that they were measured.
    """

    plan: Plan
    others: tuple[int, ...] = ()
    broken: tuple[str, ...] = ()


def next_step(
    existing: Sequence[PlanState],
    inputs_hash: str,
    *,
    again: bool,
    retry_failed: bool,
    last: int = 0,
    unread: bool = False,
    anew: bool = False,
) -> Continue | NewPlan | Finished:
    """Return the next step of a campaign whose inputs have this hash.

    Args:
        last: the greatest number that is taken, also by a plan that cannot be read
        unread: whether there is a plan that cannot be read
        anew: whether plans measure cases that have results, regardless of earlier shards
    """
    plans = sorted(existing, key=lambda state: state.plan.number)
    number = max([last, *(state.plan.number for state in plans)]) + 1
    unmerged = tuple(state.plan.number for state in plans if state.unmerged)
    own = [state for state in plans if state.plan.inputs_hash == inputs_hash]
    if own and not again and not retry_failed:
        newest = own[-1]
        others = tuple(n for n in unmerged if n != newest.plan.number)
        if newest.missing or newest.unmerged:
            return Continue(newest.plan, others)
        if not newest.broken and newest.plan.forecast.learning:
            return NewPlan(number, others, str(number))
        if not newest.broken or not may_mend(newest.plan):
            return Finished(newest.plan, others, newest.broken)
        round_ = f"{number}m{_mends(newest.plan) + 1}"
        return NewPlan(number, others, round_, newest.plan, newest.broken)
    # A shard of the same cases must not replace one that cannot be merged, or one of a plan that
    # cannot be read.
    stuck = unread or any(state.unmerged or state.broken for state in plans)
    round_ = str(number) if again or retry_failed or stuck or anew else ""
    return NewPlan(number, unmerged, round_)


def may_measure_again(plans: Sequence[Plan], inputs_hash: str) -> bool:
    """Return whether cases of sessions with suspect canaries may be measured again automatically.

    This applies to the campaign's newest plan, and once after each plan that was requested.
    """
    own = sorted((p for p in plans if p.inputs_hash == inputs_hash), key=lambda plan: plan.number)
    asked = [plan for plan in own if not _mends(plan)]
    if not asked or _SECOND.fullmatch(asked[-1].round):
        return False
    return any(plan.may_have_canaries for plan in own if plan.number >= asked[-1].number)


def second_look(finished: Finished, places: Mapping[str, str], last: int) -> NewPlan | Finished:
    """Return the step after a finished plan if only suspect sessions measured some cases.

    `places` are these cases with the devices or nodes that measured them; `last` is the greatest
    number that is taken.
    """
    if not places or finished.broken:
        return finished
    number = last + 1
    return NewPlan(
        number, finished.others, f"{number}d", doubted=Doubted(finished.plan, dict(places))
    )


def round_before(plans: Sequence[Plan], inputs_hash: str) -> Plan | None:
    """Return the campaign's last round: its newest plan that does not repeat damaged results."""
    own = (plan for plan in plans if plan.inputs_hash == inputs_hash and not _mends(plan))
    return max(own, key=lambda plan: plan.number, default=None)


def may_mend(plan: Plan) -> bool:
    """Return whether damaged results of a plan are measured again automatically."""
    return _mends(plan) < _MOST_MENDS


def _mends(plan: Plan) -> int:
    """Return how many consecutive plans, up to this one, were made for damaged results."""
    found = _MEND.fullmatch(plan.round)
    return int(found[1]) if found else 0
