"""The life of a campaign's plans: whether to continue one, make the next, or stop.

A plan belongs to the campaign while its inputs (sources, settings, stack) are the campaign's.
The newest such plan is continued until all of it is committed and merged. Everything else makes
the next plan, and what older ones committed is merged before, so that no measurement is lost and
none is made twice. Pure: the caller reads the store and acts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from collector.plan import Plan


@dataclass(frozen=True, slots=True)
class PlanState:
    """A plan and how far it came. `committed` may hold shards of other plans too; `merged` says
    that the database's head holds all that was committed of this one."""

    plan: Plan
    committed: frozenset[str]
    merged: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """The shards that nobody has committed, in the plan's order."""
        return tuple(s.shard_id for s in self.plan.shards if s.shard_id not in self.committed)

    @property
    def is_finished(self) -> bool:
        """Nothing is left to measure or to merge; true of a plan without shards."""
        return not self.plan.shards or (self.merged and not self.missing)

    @property
    def has_unmerged_work(self) -> bool:
        return not self.merged and len(self.missing) < len(self.plan.shards)


@dataclass(frozen=True, slots=True)
class Continue:
    """Measure what the plan lacks, then merge it."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class NewPlan:
    """Merge these older plans, in order, then make the plan of this number."""

    number: int
    merge_first: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The plan is merged and nothing has changed since: print its summary and stop."""

    plan: Plan


def next_step(
    existing: Sequence[PlanState], inputs_hash: str, *, again: bool, retry_failed: bool
) -> Continue | NewPlan | Finished:
    """What comes next for a campaign whose inputs have this hash."""
    plans = sorted(existing, key=lambda state: state.plan.number)
    own = [state for state in plans if state.plan.inputs_hash == inputs_hash]
    if own and not again and not retry_failed:
        newest = own[-1]
        return Finished(newest.plan) if newest.is_finished else Continue(newest.plan)
    return NewPlan(
        number=plans[-1].plan.number + 1 if plans else 1,
        merge_first=tuple(state.plan.number for state in plans if state.has_unmerged_work),
    )
