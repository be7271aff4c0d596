"""Durations of other tools as committed shards of a plan, which a merge publishes like measured
ones."""

from collector import __version__
from collector.codec.canonical import short_hash
from collector.codec.errors import NotFound
from collector.database.imported import Import, measurement_of
from collector.database.plans import read_plan
from collector.model import keys
from collector.model.manifest import NO_USAGE
from collector.model.plan import plan_to_json
from collector.store.base import Store, create_once
from collector.worker.attempt import Attempt, is_committed


def store_import(store: Store, one: Import, head_commit: int) -> tuple[str, int]:
    """Write the plan and the shards of an import; return the plan's campaign and number.

    What exists is left as it is, so that an import that was killed continues. `head_commit` is the
    newest commit, for a plan that does not exist yet."""
    shards = one.shards()
    try:
        plan = read_plan(store, one.campaign, 1)
    except NotFound:
        plan = one.plan(shards, head_commit)
        for shard in shards:
            create_once(store, keys.shard(plan.campaign, shard.shard_id), shard.table)
        create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    name = short_hash([plan.plan_hash, __version__], 12)
    for shard in shards:
        if is_committed(store, plan.campaign, shard.shard_id):
            continue
        attempt = Attempt(store, plan, shard.shard_id, name, node="")
        found = [measurement_of(row, plan, shard.shard_id, name) for row in shard.rows]
        part = attempt.upload_part(1, found, (), NO_USAGE)
        attempt.commit([part], {m.case_id: m.measurement_id for m in found})
    return plan.campaign, plan.number
