"""The merge: what plans have committed becomes the next version of the database.

It writes a whole snapshot first and then creates one commit. Killed anywhere before that, it
leaves objects that nothing names; killed after it, everything is done. Where another merge came
first, the set of what is new is computed again on top of it. Run twice, it does nothing twice.
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from collector import keys
from collector.database.commits import Commit, find_head, hint_head, try_commit
from collector.database.plan_state import PlanResults, plan_state
from collector.database.snapshot import (
    SnapshotManifest,
    load_state,
    read_manifest,
    write_snapshot,
)
from collector.database.state import MergedPlan, State, join_all
from collector.database.view import content_hash, render
from collector.errors import BadInput, NotFound, OpmeterError
from collector.store.base import Store

logger = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 5.0


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Guard:
    """How a merge knows that no other one commits the same number; a commit records the name.

    `create`         the store honours create-only writes: nothing else is needed
    `lease`          `still_holds` says whether this process holds the lease, asked before a commit
    `single-writer`  the user's word
    """

    name: str
    still_holds: Callable[[], bool] = _always


CREATE = Guard("create")
SINGLE_WRITER = Guard("single-writer")


@dataclass(frozen=True, slots=True)
class MergeResult:
    """`commit` is None where nothing was new, or where shards are missing and that was not
    allowed; `head` is the newest commit either way. `missing` are (campaign, plan, shard)."""

    commit: Commit | None
    head: Commit | None
    missing: tuple[tuple[str, int, str], ...]
    added_measurements: int


def merge(
    store: Store,
    plans: Sequence[tuple[str, int]],
    *,
    guard: Guard,
    author: str,
    supersede_stack: bool = False,
    allow_missing: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> MergeResult:
    """Publish what these plans (campaign, number) have committed.

    Without `allow_missing` nothing is published while a shard is missing. Raises BadInput for a
    second stack in a version directory (unless `supersede_stack`), for measurements of a runtime
    that the database does not hold, and for objects that are not what was committed.
    """
    results = [plan_state(store, campaign, number) for campaign, number in plans]
    missing = tuple((r.plan.campaign, r.plan.number, s) for r in results for s in r.missing)
    if missing and not allow_missing:
        return MergeResult(None, find_head(store), missing, 0)
    pause_s = 0.05
    while True:
        step = _next_step(store, results, supersede_stack)
        if step.is_nothing:
            return MergeResult(None, step.head, missing, 0)
        commit = _write(store, step, guard, author)
        if _publish(store, commit, guard):
            hint_head(store, commit)
            return MergeResult(commit, commit, missing, step.added.num_rows)
        logger.info("commit %d was made by another merge; computing again on top", commit.number)
        sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Step:
    """What one try would turn the head into, with these plans."""

    head: Commit | None
    manifest: SnapshotManifest | None  # of the head
    base: State
    joined: State
    added: pa.Table
    runtime: str
    plans: frozenset[MergedPlan]

    @property
    def is_nothing(self) -> bool:
        return self.joined == self.base


def _next_step(store: Store, results: Sequence[PlanResults], supersede_stack: bool) -> _Step:
    head = find_head(store)
    manifest = read_manifest(store, head) if head else None
    base = load_state(store, head, manifest)
    gathered = join_all(result.state for result in results)
    joined = base.join(gathered)
    if not supersede_stack:
        _check_stacks(base, results)
    return _Step(
        head=head,
        manifest=manifest,
        base=base,
        joined=joined,
        added=joined.measurements_beyond(base),
        runtime=_runtime(head, gathered),
        plans=gathered.plans,
    )


def _runtime(head: Commit | None, gathered: State) -> str:
    """What this database holds, real or fake. The first commit decides it for ever."""
    runtimes = gathered.runtimes
    held = head.runtime if head else min(runtimes, default="real")
    if foreign := runtimes - {held}:
        what = "this database" if head else "a database"
        raise BadInput(
            f"measurements of a {min(foreign)} runtime came, and {what} holds {held} ones; "
            "merge them into a database of their own"
        )
    return held


def _check_stacks(base: State, results: Sequence[PlanResults]) -> None:
    """A version directory holds one stack. A plan that the head holds already has been asked."""
    held = {path: version.shown_stack for path, version in base.versions.items()}
    for result in results:
        if result.state.measurements_beyond(base).num_rows == 0:
            continue
        stack = result.plan.stack
        other = held.setdefault(stack.version_path, stack)
        if other.stack_id != stack.stack_id:
            raise BadInput(
                f"{stack.version_path} holds stack {other.stack_id}, and plan "
                f"{result.plan.number} of {result.plan.campaign} was measured on "
                f"{stack.stack_id} (they differ in {stack.differs_in(other)}); "
                "say --supersede-stack if the new one shall show instead"
            )


def _write(store: Store, step: _Step, guard: Guard, author: str) -> Commit:
    """The snapshot, and the commit that would make it the next version."""
    head = step.head
    number = head.number + 1 if head else 1
    tree = render(step.joined)
    written = write_snapshot(
        store,
        number,
        step.joined,
        tree,
        content_hash=content_hash(step.joined, tree),
        runtime=step.runtime,
        added=step.added,
        parent=(head, step.manifest) if head and step.manifest else None,
    )
    return Commit(
        number=number,
        parent=head.number if head else 0,
        snapshot=written.name,
        manifest_sha256=written.manifest_sha256,
        content_hash=written.manifest.content_hash,
        plans=tuple(sorted(step.plans)),
        nonce=uuid.uuid4().hex,
        guard=guard.name,
        author=author,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        runtime=step.runtime,
        counts={
            "cases": step.joined.cases.num_rows,
            "measurements": step.joined.measurements.num_rows,
            "added_measurements": step.added.num_rows,
            "files": len(tree),
        },
    )


def _publish(store: Store, commit: Commit, guard: Guard) -> bool:
    """Create the commit; False where its number is taken."""
    if guard.name != CREATE.name and _is_taken(store, commit.number):
        return False
    if not guard.still_holds():
        raise OpmeterError(
            f"the {guard.name} was lost before commit {commit.number}; nothing was published"
        )
    return try_commit(store, commit)


def _is_taken(store: Store, number: int) -> bool:
    try:
        store.get(keys.commit(number))
    except NotFound:
        return False
    return True
