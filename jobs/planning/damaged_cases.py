"""What a plan measures anew where what was committed of an earlier one is damaged, and where."""

from collections.abc import Collection

from collector import keys
from collector.database.sealed import read_sealed
from collector.errors import BadInput
from collector.plan import Plan, PlannedShard
from collector.shard import read_shard
from collector.store.base import Store


def owed_cases(
    store: Store, plan: Plan, damaged: Collection[str], known: frozenset[str]
) -> dict[str, str]:
    """The cases of a plan's damaged shards, by id, each with the place that shall not measure it,
    as its shard says (empty where any may). Where a shard's own table cannot be read either, they
    are those of the `known` that no other table of the plan names, and any place may."""
    owed = dict[str, str]()
    unread = False
    for shard in plan.shards:
        if shard.shard_id in damaged:
            cases = _cases_of(store, plan, shard)
            unread = unread or cases is None
            owed |= dict.fromkeys(cases or (), shard.not_on)
    return owed | (dict.fromkeys(known - _named(store, plan), "") if unread else {})


def _named(store: Store, plan: Plan) -> set[str]:
    """Every case that a readable table of the plan names."""
    found = (_cases_of(store, plan, shard) for shard in plan.shards)
    return set[str]().union(*(cases for cases in found if cases))


def _cases_of(store: Store, plan: Plan, shard: PlannedShard) -> set[str] | None:
    key, named_by = keys.shard(plan.campaign, shard.shard_id), keys.plan(plan.campaign, plan.number)
    try:
        table = read_sealed(store, key, shard.sha256, named_by=named_by)
        return {case.record.case_id for case in read_shard(table, path=key)}
    except BadInput:
        return None
