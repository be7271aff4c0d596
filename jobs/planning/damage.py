"""Damaged objects of a campaign: how they are reported, and what of them is measured again.

All commands report by one rule. Data that the head holds does not depend on `campaigns/` any more;
only `opmeter db verify` checks it there. Damage of the current plan or a later one is reported with
its key. Damage of older plans is reported as ignored, in a single line: later plans measured the
required cases again.
"""

import re
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.database.plan_state import damage_in
from collector.database.plans import Damage, plan_reader
from collector.database.shard_commits import fetch, read_sealed
from collector.model import keys
from collector.model.plan import Plan, PlannedShard, read_shard
from collector.store.base import Store

_LISTED = 25
_KEYS_LISTED = 3
_PLAN = (
    "to do       restore the plan from a backup; otherwise `opmeter run` of this campaign makes "
    "the next plan from its sources, for cases missing in the database (--again: for all)"
)
_SHARD = (
    "to do       none of it is published; `opmeter run` of this campaign, or its controller, "
    "measures its cases again unless the object is restored first"
)
_ATTEMPTS_EXHAUSTED = (
    "to do       none of it is published, and the automatic attempts to measure its cases again "
    "are exhausted: inspect the store, then use `opmeter run` with --again"
)

# A store that damages repeated measurements will damage them again: then an operator must act.
_MOST_REMEASUREMENTS = 3
_FOR_DAMAGE = re.compile(r"\d+m(\d+)")


def remeasurements(plan: Plan) -> int:
    """Return how many consecutive plans, up to this one, were made for damaged results."""
    found = _FOR_DAMAGE.fullmatch(plan.round)
    return int(found[1]) if found else 0


def may_remeasure(plan: Plan) -> bool:
    """Return whether damaged results of a plan are measured again automatically."""
    return remeasurements(plan) < _MOST_REMEASUREMENTS


@dataclass(frozen=True, slots=True)
class DamageReport:
    """Damage by severity: `needed` is reported with its key, `ignored` in one line."""

    needed: tuple[Damage, ...]
    ignored: tuple[Damage, ...]

    @classmethod
    def of(cls, found: Iterable[Damage], since: int) -> "DamageReport":
        """Return the damage by severity.

        `since` is the number of the current plan. A shard of several plans is reported for the
        newest."""
        newest: dict[tuple[str, str, int], Damage] = {}
        for damage in sorted(found):
            newest[damage.campaign, damage.shard, 0 if damage.shard else damage.plan] = damage
        known = sorted(newest.values())
        return cls(
            tuple(damage for damage in known if damage.plan >= since),
            tuple(damage for damage in known if damage.plan < since),
        )

    def lines(self) -> Iterator[str]:
        """Yield one line for each damaged object."""
        by_key: dict[tuple[int, str], list[Damage]] = {}
        for damage in self.needed:
            by_key.setdefault((damage.plan, damage.key), []).append(damage)
        same = list(by_key.values())
        for damages in same[:_LISTED]:
            others = counted(len(damages) - 1, "more shard")
            more = f" (and of {others})" if len(damages) > 1 else ""
            yield f"{damages[0]}{more}"
        if len(same) > _LISTED:
            yield f"... and {counted(len(same) - _LISTED, 'more is', 'more are')} damaged"
        if self.ignored:
            yield _ignored_line(self.ignored)

    def advice(self, plan: Plan | None = None) -> Iterator[str]:
        """Yield what the user can do about it; `plan` is the current one."""
        if any(not damage.shard for damage in self.needed):
            yield _PLAN
        if any(damage.shard for damage in self.needed):
            yield _SHARD if plan is None or may_remeasure(plan) else _ATTEMPTS_EXHAUSTED


def _ignored_line(found: Sequence[Damage]) -> str:
    what = "; ".join(damage.short for damage in found[:_KEYS_LISTED])
    more = f"; and {len(found) - _KEYS_LISTED} more" if len(found) > _KEYS_LISTED else ""
    return f"ignored     damaged; later plans measure the required cases of it: {what}{more}"


def outside(
    plans: Iterable[Plan], committed: Container[str], held: Container[str]
) -> Iterator[tuple[Plan, PlannedShard]]:
    """Yield the committed shards that the head lacks, each with its first plan of these."""
    seen = set[str]()
    for plan in plans:
        for shard in plan.beyond(held):
            if shard.shard_id in committed and shard.shard_id not in seen:
                seen.add(shard.shard_id)
                yield plan, shard


def damage_outside(
    store: Store, plans: Sequence[Plan], committed: Collection[str], held: Collection[str]
) -> list[Damage]:
    """Return the damage that a merge of these plans, oldest first, would find."""
    plan_of = cache(partial(plan_reader, store))
    found = (
        damage_in(
            plan, fetch(store, plan, shard, with_attempt=True, plan_of=plan_of(plan.campaign))
        )
        for plan, shard in outside(reversed(plans), committed, held)
    )
    return [damage for damage in found if damage is not None]


# The cases that a plan measures again because committed results of an earlier plan are damaged.


def cases_of_damaged_shards(
    store: Store, plan: Plan, damaged: Collection[str], known: frozenset[str]
) -> dict[str, str]:
    """Return the cases of a plan's damaged shards, by id.

    Each case has the device or node that must not measure it, as its shard records (empty if any
    may). If a shard's own table cannot be read either, its cases are taken to be the `known` cases
    that no other table of the plan names, and any device may measure them."""
    owed = dict[str, str]()
    unread = False
    for shard in plan.shards:
        if shard.shard_id in damaged:
            cases = _cases_of(store, plan, shard)
            unread = unread or cases is None
            owed |= dict.fromkeys(cases or (), shard.not_on)
    if not unread:
        return owed
    named = set[str]().union(*(_cases_of(store, plan, shard) or () for shard in plan.shards))
    return owed | dict.fromkeys(known - named, "")


def _cases_of(store: Store, plan: Plan, shard: PlannedShard) -> set[str] | None:
    key, named_by = keys.shard(plan.campaign, shard.shard_id), keys.plan(plan.campaign, plan.number)
    try:
        table = read_sealed(store, key, shard.sha256, named_by=named_by)
        return {case.record.case_id for case in read_shard(table, path=key)}
    except BadInput:
        return None
