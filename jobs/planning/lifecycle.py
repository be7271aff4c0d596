"""The life of a campaign's plans: whether to continue one, make the next, or stop.

A plan belongs to the campaign while its inputs (sources, settings, stack) are the campaign's.
The newest such plan is continued until all of it is committed and merged. Everything else makes
the next plan, and what older ones committed is merged before, so that no measurement is lost and
none is made twice. What was committed and is damaged is measured anew by a plan of its own, and so
is, once, what only sessions measured whose canaries are odd. Pure: the caller reads the store and
acts.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.model.plan import Plan, PlannedShard

# A store that damages what is measured anew will damage it again: then people are asked.
_MOST_MENDS = 3
_MEND = re.compile(r"\d+m(\d+)")
_SECOND = re.compile(r"\d+d")  # the round of what doubtful sessions measured


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan and how far it came. `committed`, `held` by the database's head and `damaged` may
    name shards of other plans too."""

    plan: Plan
    committed: frozenset[str]
    held: frozenset[str]
    damaged: frozenset[str] = frozenset()

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that nobody has committed, in the plan's order."""
        return tuple(shard.shard_id for shard in self.plan.beyond(self.committed))

    @property
    def unmerged(self) -> tuple[str, ...]:
        """Those that are committed and not in the head, and not known to be damaged."""
        return tuple(s for s in self._outside if s not in self.damaged)

    @property
    def broken(self) -> tuple[str, ...]:
        """Those that are committed, and damaged: no merge can publish them."""
        return tuple(s for s in self._outside if s in self.damaged)

    @property
    def _outside(self) -> tuple[str, ...]:
        return tuple(shard.shard_id for shard in outside(self.plan, self.committed, self.held))


def outside(plan: Plan, committed: Container[str], held: Container[str]) -> Iterator[PlannedShard]:
    """The committed shards of a plan that the head lacks: what there is of it to merge."""
    return (shard for shard in plan.beyond(held) if shard.shard_id in committed)


@dataclass(frozen=True, slots=True)
class Continue:
    """Measure what the plan lacks, then merge it, and with it what came late of `others`."""

    plan: Plan
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Doubted:
    """What only doubtful sessions measured once a plan was done: its cases, each with the place
    that measured it."""

    plan: Plan
    places: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Merge these older plans, in order, then make the plan of this number. `round` sets its
    shards apart from earlier ones of the same cases; `mends` are the shards of `mended` whose cases
    it measures anew, and nothing else; so it does with the cases of `doubted`, elsewhere."""

    number: int
    merge_first: tuple[int, ...]
    round: str = ""
    mended: Plan | None = None
    mends: tuple[str, ...] = ()
    doubted: Doubted | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The plan is merged and nothing has changed since: merge what came late of `others`, print
    its summary and stop. `broken` shards were damaged as often as they were measured."""

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
    """What comes next for a campaign whose inputs have this hash. `last` is the greatest number
    that is taken, be it by a plan that cannot be read; `unread` says that there is such a plan.
    `anew` plans measure answered cases, whatever shards hold their like."""
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
    # A shard of the same cases must not take the place of one that cannot be merged; those of a
    # plan that cannot be read are such.
    stuck = unread or any(state.unmerged or state.broken for state in plans)
    round_ = str(number) if again or retry_failed or stuck or anew else ""
    return NewPlan(number, unmerged, round_)


def may_measure_again(plans: Sequence[Plan], inputs_hash: str) -> bool:
    """Whether what the sessions of the campaign's newest plan measured may be measured again
    without anybody asking for it, where their canaries are odd: once behind what was asked for."""
    own = sorted((p for p in plans if p.inputs_hash == inputs_hash), key=lambda plan: plan.number)
    asked = [plan for plan in own if not _mends(plan)]
    if not asked or _SECOND.fullmatch(asked[-1].round):
        return False
    return any(plan.may_have_canaries for plan in own if plan.number >= asked[-1].number)


def second_look(finished: Finished, places: Mapping[str, str], last: int) -> NewPlan | Finished:
    """What comes behind a plan that is done, where doubtful sessions alone have measured cases at
    these places; `last` is the greatest number that is taken."""
    if not places or finished.broken:
        return finished
    number = last + 1
    return NewPlan(
        number, finished.others, f"{number}d", doubted=Doubted(finished.plan, dict(places))
    )


def round_before(plans: Sequence[Plan], inputs_hash: str) -> Plan | None:
    """The campaign's newest plan that was not made for what was damaged: its last round."""
    own = (plan for plan in plans if plan.inputs_hash == inputs_hash and not _mends(plan))
    return max(own, key=lambda plan: plan.number, default=None)


def may_mend(plan: Plan) -> bool:
    """Whether what is damaged of a plan is measured anew without anybody asking for it."""
    return _mends(plan) < _MOST_MENDS


def _mends(plan: Plan) -> int:
    """How many plans in a row, this one the last, were made for what was damaged."""
    found = _MEND.fullmatch(plan.round)
    return int(found[1]) if found else 0
