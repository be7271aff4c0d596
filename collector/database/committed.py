"""What lies in the store of one shard, every object checked against the hash that names it.

Nothing is read of the bytes but what leads to the next of them. What was changed, is missing or is
another's is kept as the shard's damage: who asks for a shard always gets one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from collector import keys
from collector.database.binding import BoundShard
from collector.database.plans import plan_reader
from collector.database.sealed import read_sealed
from collector.errors import BadInput, NotFound, stored
from collector.manifest import AttemptManifest, ShardCommit, commit_from_json, manifest_from_json
from collector.plan import Plan, PlannedShard
from collector.store.base import Store


@dataclass(frozen=True, slots=True)
class CommittedAttempt:
    """What a shard's commit names: the manifest of an attempt, and its parts by key. Both are
    `bound` to the shard; the rows in the parts are not, yet."""

    bound: BoundShard
    manifest: AttemptManifest
    key: str
    parts: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class StoredShard:
    """The table of a shard's cases, and its answer: None while nobody has committed it. `damage`
    is what was found in the place of either."""

    shard_id: str
    table: bytes | None = None
    answer: CommittedAttempt | None = None
    damage: BadInput | None = None


def fetch(
    store: Store,
    plan: Plan,
    shard: PlannedShard,
    *,
    with_answer: bool,
    plan_of: Callable[[int], Plan] | None = None,
) -> StoredShard:
    """One shard of a plan; its table alone where the answer is not wanted. `plan_of` reads the
    other plans of the campaign, for who fetches many."""
    found = StoredShard(shard.shard_id)
    bound = BoundShard(plan, shard.shard_id, plan_of or plan_reader(store, plan.campaign))
    key = keys.shard(plan.campaign, shard.shard_id)
    try:
        named_by = keys.plan(plan.campaign, plan.number)
        found = replace(found, table=read_sealed(store, key, shard.sha256, named_by=named_by))
        return replace(found, answer=_answer(store, bound) if with_answer else None)
    except BadInput as error:
        return replace(found, damage=error)


def read_commit(store: Store, campaign: str, shard: str) -> ShardCommit | None:
    """The commit of a shard, whoever made it; None where there is none yet."""
    key = keys.committed(campaign, shard)
    try:
        with stored():
            return commit_from_json(store.get(key), key=key)
    except NotFound:
        return None


def _answer(store: Store, bound: BoundShard) -> CommittedAttempt | None:
    commit = read_commit(store, bound.plan.campaign, bound.shard)
    if commit is None:
        return None
    key, named = keys.committed(bound.plan.campaign, bound.shard), commit.manifest
    bound.check_commit(commit, key)
    data = read_sealed(store, named.key, named.sha256, named_by=key)
    manifest = manifest_from_json(data, key=named.key)
    bound.check_manifest(manifest, commit)
    parts = tuple(
        (part.key, read_sealed(store, part.key, part.sha256, named_by=named.key))
        for part in (entry.part for entry in manifest.parts)
    )
    return CommittedAttempt(bound, manifest, named.key, parts)
