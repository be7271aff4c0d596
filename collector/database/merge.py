"""The merge publishes the committed results of plans as the next version of the database.

It first writes a complete snapshot and then creates one commit. If it is killed before the commit,
it leaves objects that no commit names; if it is killed afterwards, everything is done. If another
merge creates the commit first, the results are read and computed again on top of that one. A second
merge of the same plans changes nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from collector import __version__, environment
from collector.codec.errors import BadInput, DamagedObject, NotFound, OpmeterError
from collector.database import delta
from collector.database.commits import Commit, head_to_extend, try_commit, write_hint
from collector.database.intervals import VersionIntervals, intervals_of
from collector.database.layout import collective_folder
from collector.database.lent import Priors, lenders
from collector.database.manifest import VersionEntry, read_manifest
from collector.database.plan_state import MergedPlans, PlanResults, read_results
from collector.database.plans import Damage, MergedPlan, changed, plan_or_damage
from collector.database.retired import retired_versions
from collector.database.snapshot import Base
from collector.database.snapshot_writing import (
    SNAPSHOT_COLUMNS,
    Added,
    added_files,
    measurement_digests,
    write_snapshot,
)
from collector.database.state import State, join_all
from collector.database.view import VIEW_VERSION, view_of
from collector.model import keys
from collector.model.stack import Runtime
from collector.ranks.collective import is_collective
from collector.store.base import Store

logger = logging.getLogger(__name__)
# A merge that lost a number waits, twice as long each time, so that several concurrent merges
# finish.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class Guard:
    """How a merge ensures that no other one commits the same number; a commit records the name.

    `create`         the store honours create-only writes: nothing else is needed
    `lease`          `still_holds` returns whether this process still holds the lease
    `single-writer`  the user confirms that there is only one writer"""

    name: str
    still_holds: Callable[[], bool] = lambda: True  # called right before the commit is created


CREATE = Guard("create")
SINGLE_WRITER = Guard("single-writer")


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge."""

    commit: Commit | None  # None if nothing is new, or if shards are missing and must not be
    head: Commit | None  # the newest commit, of this merge or another one
    missing: tuple[tuple[str, int, str], ...]  # (campaign, plan, shard)
    damaged: tuple[Damage, ...]  # what cannot be read and is in no version
    added_measurements: int


def merge_plans(
    store: Store,
    plans: Sequence[tuple[str, int]],
    *,
    guard: Guard,
    author: str,
    supersede_stack: bool = False,
    allow_missing: bool = False,
    sleep: Callable[[float], None] = environment.sleep,
) -> MergeResult:
    """Publish the committed results of these plans (campaign, number) that the head lacks.

    Without `allow_missing` nothing is published while a shard is missing. A plan or shard that
    cannot be read is reported and does not stop the others. Raises BadInput for a plan that does
    not exist, for a second stack in a version directory (unless `supersede_stack`), and for
    measurements of another runtime than the database has."""
    pause_s = _FIRST_PAUSE_S
    request = _Request(plans, guard, author, supersede_stack, allow_missing)
    while True:  # if another merge takes the number first, begin again on top of its commit
        base = _base(store)
        try:
            result = _merge_onto(store, base, request)
        except DamagedObject:
            if base.commit is None or base.commit.number not in retired_versions(store):
                raise
            result = None  # newer commits were made and this one was retired, while it was read
        if result is not None:
            return result
        made = base.commit.number + 1 if base.commit is not None else 1
        logger.info("recomputing: another merge made commit %d", made)
        sleep(pause_s * environment.uniform(0.5, 1.5))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Request:
    """The arguments of `merge_plans`."""

    plans: Sequence[tuple[str, int]]
    guard: Guard
    author: str
    supersede_stack: bool
    allow_missing: bool


def _merge_onto(store: Store, base: Base, request: _Request) -> MergeResult | None:
    """Merge on top of a commit. Return None if another merge has made the next one."""
    # Phase 1: read the results that the head lacks.
    results, damaged = _gather(store, request.plans, base)
    missing = tuple((r.plan.campaign, r.plan.number, s) for r in results for s in r.missing)
    if missing and not request.allow_missing:
        return MergeResult(None, base.commit, missing, damaged, 0)
    # Phase 2: join both, write the snapshot, create the commit.
    step = _next_step(base, results, request.supersede_stack)
    if step.is_nothing:
        if base.commit is not None:  # its merge may have been killed before writing the hint
            write_hint(store, base.commit.number, base.commit.sha256)
            delta.publish(store, base.commit)
        return MergeResult(None, base.commit, missing, damaged, 0)
    changes = _changes(step)
    del results, step  # what has all columns of the measurements, before the view is rendered
    commit = _write(base, changes, request.guard, request.author)
    if not _publish(store, commit, request.guard):
        return None
    write_hint(store, commit.number, commit.sha256)
    delta.publish(store, commit)
    added = commit.counts["added_measurements"]
    return MergeResult(commit, commit, missing, damaged, added)


def _base(store: Store) -> Base:
    head = head_to_extend(store)
    return Base(store, head, read_manifest(store, head) if head else None)


def _gather(
    store: Store, plans: Sequence[tuple[str, int]], base: Base
) -> tuple[list[PlanResults], tuple[Damage, ...]]:
    held = MergedPlans(base.plans, base.shards({campaign for campaign, _ in plans}))
    results, damaged = [], list[Damage]()
    for campaign, number in plans:
        try:
            plan = plan_or_damage(store, campaign, number)
        except NotFound as error:
            what = f"campaign {campaign!r} has no plan {number} at {store.url}"
            raise BadInput(what) from error
        if isinstance(plan, Damage):
            damaged.append(plan)
            continue
        if (other := changed(plan, held.plans)) is not None:
            # None of its results belongs to the merged plan. Shards that the head holds are not
            # needed.
            if not all(held.has(plan, shard.shard_id) for shard in plan.shards):
                damaged.append(other)
            continue
        result = read_results(store, plan, held)
        results.append(result)
        damaged += result.damaged
    return results, tuple(damaged)


@dataclass(frozen=True, slots=True)
class _Step:
    """The next version that one attempt would publish, of the version directories that the results
    belong to."""

    base: Base
    joined: State  # of the next version
    plans: frozenset[MergedPlan]  # of the results
    kernels: frozenset[str]  # of the results
    added: Mapping[str, Added]  # the measurements that the head lacks
    # Whether the head has all of it, whatever its plans. Another plan with the same shards may have
    # published their results. A plan's name alone does not make a new version.
    is_nothing: bool
    runtime: Runtime


def _next_step(base: Base, results: Sequence[PlanResults], supersede_stack: bool) -> _Step:
    gathered = join_all(result.state for result in results)
    before = base.load(gathered.versions)
    joined = before.join(gathered)
    runtime = _runtime(base.commit, gathered)
    if supersede_stack:
        _check_supersedes(before, joined, results)
    else:
        _check_stacks(before, results)
    is_nothing = replace(joined, plans=before.plans) == before
    is_added = joined.is_beyond(before)
    del before  # as large as the rest
    added = gathered.measurements  # mostly the same rows, which are in memory anyway
    if pc.sum(is_added, min_count=0).as_py() != added.num_rows:
        added = joined.measurements.filter(is_added)
    return _Step(
        base,
        joined,
        gathered.plans,
        frozenset(pc.unique(gathered.cases["kernel_type"]).to_pylist()),
        added_files(added),
        is_nothing,
        runtime,
    )


def _runtime(head: Commit | None, gathered: State) -> Runtime:
    runtimes = gathered.runtimes
    held = head.runtime if head else min(runtimes, default=Runtime.REAL)
    if foreign := runtimes - {held}:
        what = "this database" if head else "a database"
        raise BadInput(
            f"expected measurements of a {held} runtime, as {what} holds, got those of a "
            f"{min(foreign)} runtime; merge them into a separate database"
        )
    return held


def _check_stacks(base: State, results: Sequence[PlanResults]) -> None:
    """Raise BadInput for a second stack in a version directory.

    An imported stack is none: only the parts in the path of the directory are known, and they
    agree. Plans whose measurements are all in the head were checked by an earlier merge."""
    held = {path: version.shown_stack for path, version in base.versions.items()}
    for result in results:
        if result.state.measurements_beyond(base).num_rows == 0:
            continue
        stack = result.plan.stack
        if stack.is_imported:
            continue
        other = held.get(stack.version_path, stack)
        other = held[stack.version_path] = stack if other.is_imported else other
        if other.stack_id != stack.stack_id:
            raise BadInput(
                f"{stack.version_path} holds stack {other.stack_id}, but plan "
                f"{result.plan.number} of {result.plan.campaign} was measured on "
                f"{stack.stack_id} (they differ in {stack.differs_in(other)}); "
                "pass --supersede-stack to show the new stack instead"
            )


def _check_supersedes(base: State, joined: State, results: Sequence[PlanResults]) -> None:
    """Raise BadInput if --supersede-stack would change nothing.

    The rank of the plans decides which of two stacks is displayed. If the displayed one ranks
    higher, the new rows would not be displayed."""
    for result in results:
        stack, path = result.plan.stack, result.plan.stack.version_path
        if path not in base.versions or not result.state.measurements_beyond(base).num_rows:
            continue
        shown = joined.versions[path]
        changes = shown.shown_stack.stack_id != base.versions[path].shown_stack.stack_id
        if shown.shown_stack.stack_id != stack.stack_id and not changes:
            plan = result.plan
            raise BadInput(
                f"--supersede-stack would change nothing: {path} shows stack "
                f"{shown.shown_stack.stack_id} of a plan made at version "
                f"{shown.stack.rank[0]}, and plan {plan.number} of {plan.campaign} was made "
                f"earlier, at version {plan.head_commit}; measure again on top of the shown "
                "version: opmeter run CAMPAIGN --again --supersede-stack"
            )


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a commit will publish.

    `state` is that of all version directories whose files the results may change, with the columns
    of measurements that their files depend on, and `intervals` are theirs. `folders` are the
    folders of collectives that may change."""

    state: State
    intervals: Mapping[str, VersionIntervals]
    folders: frozenset[str]
    digests: Mapping[str, str]  # of all columns of the measurements
    added: Mapping[str, Added]
    plans: frozenset[MergedPlan]
    runtime: Runtime


def _changes(step: _Step) -> _Changes:
    """Return what a step publishes.

    Besides the directories of the results, these are the directories whose prior of the variance
    changes, and those that share a folder of collectives with one that changes."""
    state, intervals, folders = _changed_versions(step)
    digests = measurement_digests(state)
    narrow = replace(state, measurements=state.measurements.select(SNAPSHOT_COLUMNS))
    return _Changes(narrow, intervals, folders, digests, step.added, step.plans, step.runtime)


def _write(base: Base, changes: _Changes, guard: Guard, author: str) -> Commit:
    head = base.commit
    number = head.number + 1 if head else 1
    view = view_of(changes.state, intervals=changes.intervals)
    name, manifest_sha256, manifest = write_snapshot(
        *(base, number, changes.state, view),
        intervals=changes.intervals,
        folders=changes.folders,
        runtime=changes.runtime,
        added=changes.added,
        digests=changes.digests,
    )
    entries = manifest.versions.values()
    return Commit(
        number=number,
        parent=head.number if head else 0,
        parent_sha256=head.sha256 if head else "",
        snapshot=name,
        manifest_sha256=manifest_sha256,
        content_hash=manifest.content_hash,
        plans=tuple(sorted(changes.plans)),
        nonce=environment.token(32),
        guard=guard.name,
        author=author,
        time=environment.utc_now().isoformat(timespec="seconds"),
        runtime=changes.runtime,
        counts={
            "cases": sum(entry.cases for entry in entries),
            "measurements": sum(entry.measurements for entry in entries),
            "added_measurements": sum(one.entry.rows for one in changes.added.values()),
            "versions": len(manifest.versions),
        },
        view_version=VIEW_VERSION,
        written_by=__version__,
    )


def _changed_versions(step: _Step) -> tuple[State, dict[str, VersionIntervals], frozenset[str]]:
    state, entries = step.joined, step.base.entries
    has_collectives = {path for path in state.versions if any(map(is_collective, step.kernels))}
    while True:
        intervals = intervals_of(state)
        has_collectives |= {
            path
            for path in state.versions.keys() & entries.keys()
            if entries[path].collectives
            and (
                intervals[path].prior != entries[path].prior
                or state.versions[path].stack != entries[path].version.stack
            )
        }
        folders = frozenset(map(collective_folder, has_collectives))
        more = _with_another_prior(entries, state, intervals)
        more |= {
            path
            for path, entry in entries.items()
            if entry.collectives and collective_folder(path) in folders
        }
        if not (more := more - state.versions.keys()):
            return state, intervals, folders
        state = state.join(step.base.load(more))


def _with_another_prior(
    entries: Mapping[str, VersionEntry], state: State, intervals: Mapping[str, VersionIntervals]
) -> set[str]:
    """Return the version directories outside of `state` whose prior of the variance differs from
    the one that they show."""
    priors = Priors({**state.elsewhere, **{path: one.lent for path, one in intervals.items()}})
    found = set[str]()
    for path, entry in entries.items():
        if path in state.versions:
            continue
        for over_ranks in (False, True):
            before = {p: e.pairs[over_ranks] for p, e in entries.items()}
            after = before | {p: one.lent.counts[over_ranks] for p, one in intervals.items()}
            lent = {*lenders(path, before, over_ranks=over_ranks)}
            lent |= {*lenders(path, after, over_ranks=over_ranks)}
            if lent & intervals.keys() and priors.digest(path) != entry.prior:
                found.add(path)
    return found


def _publish(store: Store, commit: Commit, guard: Guard) -> bool:
    """Create the commit. Return False if its number is taken."""
    if guard.name != CREATE.name:
        with suppress(NotFound):
            store.get(keys.commit(commit.number))
            return False
    if not guard.still_holds():
        raise OpmeterError(
            f"lost the {guard.name} before commit {commit.number}; nothing was published"
        )
    return try_commit(store, commit)
