"""The verification of a database: every claim of its commits is checked, every problem listed
(docs/reference/database.md). Every object is read once, even if several commits name it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, NotFound
from collector.database import layout, snapshot
from collector.database.cleanup import OF_VERSIONS, NamedObjects, named_objects
from collector.database.commits import (
    Commit,
    end_of_log,
    is_hint_damaged,
    is_hinted,
    read_commit,
)
from collector.database.intervals import intervals_of
from collector.database.manifest import (
    FileEntry,
    SnapshotManifest,
    collective_files,
    read_file,
    read_manifest,
)
from collector.database.plan_state import MergedPlans, read_results
from collector.database.plans import MergedPlan, changed, read_plan
from collector.database.raw_records import RawRecord, record_problems
from collector.database.retired import Retirement, retirement_problems, retirements
from collector.database.reuse import read_reuse, reuse_keys
from collector.database.shard_commits import is_slip
from collector.database.state import (
    MEASUREMENT_SCHEMA,
    distinct_pairs,
    identities,
    is_among,
)
from collector.database.verify_version import VersionCheck, tree_differences
from collector.database.view import (
    VIEW_VERSION,
    collective_tables,
    content_hash_of,
)
from collector.model import keys
from collector.model.plan import Plan
from collector.store.base import Info, Store

# The claims of a database about campaigns, compared with the objects under `campaigns/`. All plans,
# shards, manifests and parts that commits name are read again, as a merge reads them.

_ORIGIN = ("campaign", "shard", "attempt", "session")
_ID = ("measurement",)
_NO_ROWS = MEASUREMENT_SCHEMA.empty_table()
_ROW_COLUMNS = tuple(name for name in MEASUREMENT_SCHEMA.names if name != "final")


@dataclass(frozen=True, slots=True)
class _Claim:
    """A merged plan, the first commit that names it, and the plan in the store, or a line about why
    it cannot be read."""

    merged: MergedPlan
    commit: int
    plan: Plan | None
    problem: str = ""

    @property
    def path(self) -> str:
        """Return its version directory; empty if it is not known."""
        return self.plan.stack.version_path if self.plan else ""


def _claims(store: Store, plans: Mapping[MergedPlan, int]) -> dict[str, list[_Claim]]:
    """Return plans by their version directory, given the first commit that names each."""
    found: dict[str, list[_Claim]] = {}
    for merged, commit in sorted(plans.items()):
        try:
            claim = _Claim(merged, commit, read_plan(store, merged.campaign, merged.number))
        except (BadInput, NotFound) as error:
            key = keys.plan(merged.campaign, merged.number)
            gone = f"{key}: missing, although plan {merged.plan_hash} was merged"
            problem = gone if isinstance(error, NotFound) else str(error)
            claim = _Claim(merged, commit, None, problem)
        found.setdefault(claim.path, []).append(claim)
    return found


def origin_problems(
    store: Store,
    claims: Iterable[_Claim],
    tables: Mapping[str, tuple[int, pa.Table]],
    *,
    with_raw: bool,
) -> Iterator[tuple[int, str]]:
    """Return the commit and the line of each wrong claim: of plans, and of files of measurements by
    their key, each with the first commit that makes it.

    The records of the profiler are read again only `with_raw`."""
    shards = (distinct_pairs(rows, ("campaign", "shard")) for _, rows in tables.values())
    published = frozenset[tuple[str, str]]().union(*shards)
    read = [(claim.commit, _read(store, claim, published)) for claim in claims]
    checked = set[str]()  # plans may share a shard
    for commit, found in read:
        yield from ((commit, text) for text in found.problems)
        if with_raw:
            own = (record for record in found.records if record.stored.key not in checked)
            records = {record.stored.key: record for record in own}
            checked.update(records)
            yield from ((commit, text) for text in record_problems(store, records.values()))
    unreadable_prefixes = frozenset[str]().union(*(found.unreadable_prefixes for _, found in read))
    stored = pa.concat_tables([found.rows for _, found in read] or [_NO_ROWS])
    held = identities(stored, _ROW_COLUMNS)
    final = identities(stored.filter(stored["final"]), _ID)
    for key, (commit, rows) in tables.items():
        for part, count in _unfounded(rows, held, final):
            if not part.startswith(tuple(unreadable_prefixes)):
                yield commit, f"{key}: {count} of its measurements do not match {part}"


@dataclass(frozen=True, slots=True)
class _ShardRows:
    """The rows of a plan's shards, and the profiler's records of its published shards.

    `problems` are lines about what cannot be read, `unreadable_prefixes` the prefixes of the keys
    that they cover."""

    rows: pa.Table
    problems: tuple[str, ...] = ()
    unreadable_prefixes: frozenset[str] = frozenset()
    records: tuple[RawRecord, ...] = ()


def _read(store: Store, claim: _Claim, published: Collection[tuple[str, str]]) -> _ShardRows:
    """Return the content of a plan's shards. Only problems of published shards count."""
    if (plan := claim.plan) is None:
        prefix = keys.all_attempts(claim.merged.campaign)
        return _ShardRows(_NO_ROWS, (claim.problem,), frozenset({prefix}))
    others = {(plan.campaign, s.shard_id) for s in plan.shards} - set(published)
    held = MergedPlans(frozenset({MergedPlan.of(plan)}), frozenset(others))
    results = read_results(store, plan, held)
    broken = [d for d in results.damaged if (d.campaign, d.shard) in published]
    problems = [damage.reason for damage in broken]
    if other := changed(plan, [claim.merged]):  # this is the problem of all its shards
        problems = [other.reason, *(d.reason for d in broken if d.key != other.key)]
    unreadable_prefixes = frozenset(
        keys.attempts(damage.campaign, damage.shard) for damage in broken
    )
    records = tuple(r for r in results.records if (plan.campaign, r.shard) in published)
    return _ShardRows(results.state.measurements, tuple(problems), unreadable_prefixes, records)


def _unfounded(rows: pa.Table, held: pa.Array, final: pa.Array) -> Iterator[tuple[str, int]]:
    """Return the keys of parts with the number of rows that wrongly claim to be from there.

    Such a row is in no committed part (`held` are the rows that are), or is `final` although no
    manifest makes it so."""
    is_held, is_final = is_among(rows, _ROW_COLUMNS, held), is_among(rows, _ID, final)
    is_founded = pc.and_(is_held, pc.or_(is_final, pc.invert(rows["final"])))
    unfounded = rows.filter(pc.invert(is_founded)).select(_ORIGIN)
    for row in unfounded.group_by(list(_ORIGIN)).aggregate([([], "count_all")]).to_pylist():
        place = (row["campaign"], row["shard"], row["attempt"], int(row["session"]))
        yield keys.part(*place), row["count_all"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong claim with the first commit that makes it.

    `text` is a line for the user that begins with the object's key."""

    commit: int
    text: str

    @property
    def key(self) -> str:
        return self.text.partition(": ")[0]


def find_problems(
    store: Store,
    commits: Iterable[Commit] | None = None,
    *,
    with_raw: bool = True,
    since: int = 0,
) -> list[Problem]:
    """Check these commits, or all of them, their chain and the records of reused cases; the list
    is empty if all is correct.

    `with_raw` also reads the records of the profiler. Of commits up to `since` only the chain and
    the manifests of snapshots are checked: an earlier call has found their content correct. Of
    retired versions the chain, the manifests and the measurements are checked."""
    chosen = None if commits is None else list(commits)
    while True:  # until no version is retired meanwhile
        records, unread = _retirements(store)
        problems = [*unread, *_find(store, chosen, records, with_raw=with_raw, since=since)]
        if not problems or records == _retirements(store)[0]:
            return list(dict.fromkeys(problems))


def _retirements(store: Store) -> tuple[list[Retirement], list[Problem]]:
    try:
        return retirements(store), []
    except BadInput as error:
        return [], [Problem(0, str(error))]


def _find(
    store: Store,
    chosen: list[Commit] | None,
    records: list[Retirement],
    *,
    with_raw: bool,
    since: int,
) -> list[Problem]:
    problems: list[Problem] = []
    commits = chosen or []
    if chosen is None:
        commits, problems = _chain(store)
    retired = frozenset(one for record in records for one in record.versions)
    log = _Log(store)
    for commit in commits:
        problems += [Problem(commit.number, text) for text in log.read(commit)]
    origins: list[Problem] = []
    claims = _claims(store, log.plans if not since else log.plans_after(since))
    unknown = claims.pop("", [])
    for path in sorted(log.paths | claims.keys()):
        check = VersionCheck(store, path, since, retired)
        for commit, manifest in log.manifests:
            problems += [Problem(commit.number, text) for text in check.commit(commit, manifest)]
        own = (*claims.get(path, ()), *unknown)
        found = origin_problems(store, own, check.rows, with_raw=with_raw)
        origins += [Problem(*one) for one in found]
    kept = [one for one in log.manifests if one[0].number not in retired]
    problems += [Problem(*one) for one in _collective_problems(store, kept, since)]
    if chosen is None:
        problems += [Problem(*one) for one in _reuse_problems(store, log.manifests)]
        if commits:
            found_by = retirement_problems(store, records, commits[-1])
            problems += [Problem(*one) for one in found_by]
    problems.sort(key=lambda problem: problem.commit)
    return [*problems, *origins]


def of_other_view_versions(store: Store, commits: Iterable[Commit] | None = None) -> int:
    """Return how many of these commits, or of all that can be read, were rendered by another
    version of the view, so that `find_problems` does not render them."""
    chosen = _chain(store)[0] if commits is None else commits
    return sum(commit.view_version != VIEW_VERSION for commit in chosen)


def _chain(store: Store) -> tuple[list[Commit], list[Problem]]:
    commits: list[Commit] = []
    problems: list[Problem] = []
    try:
        log = end_of_log(store)
        end, fault = log.head.number if log.head else 0, log.fault
    except BadInput:  # the newest cannot be read
        listed = (keys.number_in_key(info.key, keys.commit) for info in store.list(keys.COMMITS))
        end, fault = max((number for number in listed if number is not None), default=0), None
    for number in range(1, end + 1):
        try:
            commits.append(read_commit(store, number))
        except BadInput as error:
            problems.append(Problem(number, str(error)))
        except NotFound:
            problems.append(Problem(number, f"{keys.commit(number)}: missing"))
    by_number = {commit.number: commit for commit in commits}
    for before, commit in pairwise(commits):
        problems += _breaks(store, before, commit, by_number.get(commit.number + 1))
    if fault is not None and not problems:
        named = fault.partition(": ")[0]
        problems.append(Problem(keys.number_in_key(named, keys.commit) or end, fault))
    return commits, sorted(problems, key=lambda problem: problem.commit)


def _breaks(
    store: Store, before: Commit, commit: Commit, child: Commit | None
) -> Iterator[Problem]:
    """Return the contradictions of two successive commits, at the one that was changed."""
    key, parent = keys.commit(commit.number), keys.commit(before.number)
    if commit.parent == before.number and commit.parent_sha256 != before.sha256:
        # The next commit records the hash of a commit, or else HEAD.json; None if neither does.
        is_whole = is_hinted(store, commit.number, commit.sha256)
        if child is not None:
            is_whole = child.parent_sha256 == commit.sha256
        slipped = is_slip(commit.parent_sha256, before.sha256)
        if is_whole is False or (slipped and not is_whole):
            what = f"parent_sha256 does not match the sha256 of {parent}: the commit was changed"
            yield Problem(commit.number, f"{key}: {what} after it was written")
        else:
            what = f"its sha256 does not match the one recorded in {key}: the commit was changed"
            yield Problem(before.number, f"{parent}: {what} after it was written")
    if commit.runtime != before.runtime:
        text = f"runtime: expected {before.runtime}, as in {parent}, got {commit.runtime}"
        yield Problem(commit.number, f"{key}: {text}")


@dataclass(slots=True)
class _Log:
    """The manifests of the commits that were read, in their order, and the plans that they claim,
    each with the first commit that does."""

    store: Store
    manifests: list[tuple[Commit, SnapshotManifest]] = field(default_factory=list)
    plans: dict[MergedPlan, int] = field(default_factory=dict)

    def plans_after(self, since: int) -> dict[MergedPlan, int]:
        """Return the plans of campaigns whose measurements a commit after `since` may have added:
        late results of an earlier plan may be among them."""
        late = (commit.plans for commit, _ in self.manifests if commit.number > since)
        campaigns = {plan.campaign for plans in late for plan in plans}
        return {plan: first for plan, first in self.plans.items() if plan.campaign in campaigns}

    @property
    def paths(self) -> set[str]:
        return {path for _, manifest in self.manifests for path in manifest.versions}

    def read(self, commit: Commit) -> Iterator[str]:
        try:
            manifest = read_manifest(self.store, commit)
        except BadInput as error:
            yield str(error)
            return
        key = keys.snapshot_manifest(commit.snapshot)
        if self.manifests:
            _, last = self.manifests[-1]
            names = (("versions", set(last.versions), set(manifest.versions)),)
            lost = [min(old - new) for _, old, new in names if old - new]
            lost += [str(plan) for plan in sorted(set(last.plans).difference(manifest.plans))[:1]]
            for one in lost:
                yield f"{key}: {one} was in the previous version and is missing here"
        hashes = {path: entry.content_hash for path, entry in manifest.versions.items()}
        folders = manifest.collectives.values()
        files = {n: one.sha256 for folder in folders for n, one in folder.files.items()}
        if (found := content_hash_of(hashes, files)) != manifest.content_hash:
            what = f"content_hash: expected {found}, as computed from its entries, got "
            yield f"{keys.commit(commit.number)}: {what}{manifest.content_hash}"
        self.manifests.append((commit, manifest))
        self.plans = dict.fromkeys(manifest.plans, commit.number) | self.plans


def _collective_problems(
    store: Store, manifests: Iterable[tuple[Commit, SnapshotManifest]], since: int
) -> Iterator[tuple[int, str]]:
    """Return the commit and the line of each wrong file of collectives.

    A folder is rendered at each commit that changes it, or a version directory that it shows."""
    last: dict[str, tuple[object, ...]] = {}
    for commit, manifest in manifests:
        members: dict[str, list[str]] = {}
        for path, entry in manifest.versions.items():
            if entry.collectives:
                members.setdefault(layout.collective_folder(path), []).append(path)
        for folder in sorted({*members, *manifest.collectives}):
            paths = members.get(folder, [])
            files = manifest.collectives.get(folder)
            now = (files, *((path, manifest.versions[path].sha256) for path in paths))
            if last.get(folder) != now:
                last[folder] = now
                if commit.number <= since:
                    continue
                found = _of_folder(store, commit, manifest, folder, paths)
                yield from ((commit.number, text) for text in found)


def _of_folder(
    store: Store, commit: Commit, manifest: SnapshotManifest, folder: str, paths: Collection[str]
) -> Iterator[str]:
    stored = collective_files(commit, manifest)
    own = {name: one for name, one in stored.items() if name.startswith(f"{folder}/")}
    for file in own.values():
        try:
            read_file(store, file)
        except BadInput as error:
            yield str(error)
    files = manifest.collectives.get(folder)
    if files is not None and files.view_version != VIEW_VERSION:
        return
    try:
        state = snapshot.load_state(store, commit, manifest, paths=paths)
        view = collective_tables(state, intervals_of(state))
    except BadInput:  # reported by the checks of the version directories
        return
    shown = {n: FileEntry(sha256_hex(f.data), len(f.data), f.rows) for n, f in view.items()}
    place = keys.snapshot(files.snapshot if files else commit.snapshot)
    promised = {name: file.entry for name, file in own.items()}
    yield from (place + text for text in tree_differences(shown, promised))


def _reuse_problems(
    store: Store, manifests: Iterable[tuple[Commit, SnapshotManifest]]
) -> Iterator[tuple[int, str]]:
    """Return the commit and the line of each wrong record of reused cases: one that cannot be read,
    that is under the key of another version directory, or whose older directory, at the commit of
    the decision, has another stack or lacks a duration of a reused case."""
    known = {commit.number: (commit, manifest) for commit, manifest in manifests}
    durations: dict[tuple[int, str], frozenset[str]] = {}
    for key in reuse_keys(store):
        try:
            record = read_reuse(store, key)
        except BadInput as error:
            yield max(known, default=0), str(error)
            continue
        at, path = record.head_commit, record.of
        if not key.startswith(keys.all_reused(record.version_path)):
            yield at, f"{key}: expected the key of a record of {record.version_path}"
        commit, manifest = known.get(at, (None, None))
        if commit is None or manifest is None or path not in manifest.versions:
            yield at, f"{key}: reuses {path} of version {at}, which has no such directory"
            continue
        stack = manifest.versions[path].version.shown_stack.stack_id
        if stack != record.of_stack_id:
            yield at, f"{key}: expected stack {stack}, as {path} shows, got {record.of_stack_id}"
        if (at, path) not in durations:
            try:
                shown = snapshot.read_shown(store, commit, manifest, path)
            except BadInput:  # reported by the check of that version directory
                continue
            durations[at, path] = frozenset(shown.intervals["case"].to_pylist())
        if absent := record.case_ids - durations[at, path]:
            yield at, f"{key}: case {min(absent)} has no duration in {path} of version {at}"


# Objects in a store that this project did not write, or that no version names. They have no effect:
# readers that list keys use only the keys that they can build themselves.

_DAMAGED_HINT = "damaged; the next merge writes it again; until then, a lost commit is not detected"


@dataclass(frozen=True, slots=True)
class Stray:
    """One object, or a prefix with all objects below it, and why it is listed."""

    key: str
    reason: str


def find_strays(store: Store) -> list[Stray]:
    """Return all strays below `db/` and `campaigns/`, sorted by key. If a version cannot be read,
    strays that depend on the versions are left out."""
    named = named_objects(store)
    found: dict[str, str] = {}
    for prefix in (keys.CAMPAIGNS, keys.DATABASE):
        for info in store.list(prefix):
            for stray in _of_object(info, named):
                found.setdefault(stray.key, stray.reason)
    if is_hint_damaged(store):
        found[keys.HEAD] = _DAMAGED_HINT
    return [Stray(key, reason) for key, reason in sorted(found.items())]


def _of_object(info: Info, named: NamedObjects) -> Iterator[Stray]:
    place = "/".join(info.key.split("/")[:3]) + "/"
    if not keys.is_ours(info.key):
        yield Stray(info.key, "not a key of this project")
    elif info.size_bytes == 0:
        yield Stray(info.key, "empty object")
    elif not named.is_all or not info.key.startswith(OF_VERSIONS):
        return
    elif info.key.startswith(keys.SNAPSHOTS) and place not in named.snapshots:
        yield Stray(place, "no version uses this snapshot")
    elif info.key not in named.objects and "/_delta_log/" not in info.key:
        yield Stray(info.key, "no version names it")
