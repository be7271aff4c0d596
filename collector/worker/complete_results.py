"""Results that are complete before their plan, as committed shards, which a merge publishes like
measured ones."""

from collector import __version__
from collector.codec.canonical import short_hash
from collector.codec.errors import NotFound
from collector.database.complete_results import (
    CompleteResults,
    complete_plan,
    complete_shards,
    measurements_of,
)
from collector.database.plans import read_plan
from collector.model import keys
from collector.model.manifest import NO_USAGE
from collector.model.plan import plan_to_json
from collector.store.base import Store, create_once
from collector.worker.attempt import Attempt, is_committed


def store_results(
    store: Store, results: CompleteResults, head_commit: int, node: str = ""
) -> tuple[str, int]:
    """Write the plan and the shards of results; return the plan's campaign and number.

    What exists is left as it is, so that a process that was killed continues. `head_commit` is the
    newest commit, for a plan that does not exist yet."""
    shards = complete_shards(results.records)
    try:
        plan = read_plan(store, results.campaign, 1)
    except NotFound:
        plan = complete_plan(results, shards, head_commit)
        for shard in shards:
            create_once(store, keys.shard(plan.campaign, shard.shard_id), shard.table)
        create_once(store, keys.plan(plan.campaign, plan.number), plan_to_json(plan))
    name = short_hash([plan.plan_hash, __version__], 12)
    for shard in shards:
        if is_committed(store, plan.campaign, shard.shard_id):
            continue
        attempt = Attempt(store, plan, shard.shard_id, name, node=node)
        found = list(measurements_of(results, shard, plan, name, node))
        part = attempt.upload_part(1, found, (), NO_USAGE)
        attempt.commit([part], {m.case_id: m.measurement_id for m in found})
    return plan.campaign, plan.number
