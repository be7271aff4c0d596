"""The verification of a database: every claim of its commits is checked, every problem listed
(docs/reference/database.md). Every object is read once, even if several commits name it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, NotFound
from collector.database import layout, snapshot
from collector.database.commits import (
    Commit,
    end_of_log,
    history,
    is_hint_damaged,
    is_hinted,
    read_commit,
)
from collector.database.committed import RawRecord, is_slip, record_problems
from collector.database.index_build import index_bytes
from collector.database.intervals import (
    INTERVAL_KEY,
    INTERVAL_SCHEMA,
    VersionIntervals,
    intervals_of,
)
from collector.database.manifest import (
    INTERVALS,
    FileEntry,
    SnapshotManifest,
    index_path,
    read_file,
    read_manifest,
)
from collector.database.parquet import read_parquet
from collector.database.plan_state import read_results
from collector.database.plans import MergedPlan, changed, read_plan
from collector.database.rows import check_rows
from collector.database.state import (
    MEASUREMENT_SCHEMA,
    TEXT,
    State,
    differing,
    distinct,
    identities,
    is_among,
)
from collector.database.view import VIEW_VERSION, content_hash_of, view_of
from collector.model import keys
from collector.ranks.collective import is_collective
from collector.store.base import Info, Store

# The view of each commit of a log, computed from its state, in the order of the log. Only the files
# that depend on rows which the previous commit lacks are rendered: those of the kernel types of
# these rows' cases, and of version directories with another stack or variance model than before.

_CASE = ("version_path", "case")
_KERNEL = ("version_path", "kernel_type")


@dataclass(frozen=True, slots=True)
class Shown:
    """The view of a state, and the files of measurements that the state was read from."""

    state: State
    measurements: Mapping[str, pa.Table]
    intervals: Mapping[str, VersionIntervals]
    files: Mapping[str, FileEntry]
    interval_rows: pa.Table


def shown_after(before: Shown | None, state: State, measurements: Mapping[str, pa.Table]) -> Shown:
    """Return the view of a state, given the view of an earlier one.

    `measurements` are by key; a file with the same key is the same in both."""
    intervals = intervals_of(state)
    if before is None or not before.measurements.keys() <= measurements.keys():
        return _shown(state, measurements, intervals, state)
    added = [table for key, table in measurements.items() if key not in before.measurements]
    touched = _touched(before, state, intervals, added)
    both = pa.concat_tables([before.state.cases, state.cases]).select((*_CASE, "kernel_type"))
    touched = _with_shared_files(both, touched)
    replaced = both.filter(is_among(both, _KERNEL, touched))
    gone = set[str]()
    for path, kernel in distinct(replaced, _KERNEL):
        places = [path, f"{path}/{layout.UNKNOWN_INPUTS}"]
        if is_collective(kernel):
            folder = layout.collective_folder(path)
            places += [folder, f"{folder}/{layout.OTHER_SETTINGS}"]
        gone |= {f"{place}/{layout.kernel_file_name(kernel)}" for place in places}
    # The part of the state that the files of the touched kernel types depend on.
    cases = state.cases.filter(is_among(state.cases, _KERNEL, touched))
    is_own = is_among(state.measurements, _CASE, identities(cases, _CASE))
    part = replace(state, cases=cases, measurements=state.measurements.filter(is_own))
    new = _shown(state, measurements, intervals, part)
    kept = {
        path: file
        for path, file in before.files.items()
        if path not in gone and path.rpartition("/")[2] != layout.OP_MAPPING
    }
    is_gone = is_among(before.interval_rows, _CASE, identities(replaced, _CASE))
    rows = pa.concat_tables([before.interval_rows.filter(pc.invert(is_gone)), new.interval_rows])
    rows = rows.sort_by([(name, "ascending") for name in INTERVAL_KEY])
    return replace(new, files={**kept, **new.files}, interval_rows=rows)


def _shown(
    state: State,
    measurements: Mapping[str, pa.Table],
    intervals: Mapping[str, VersionIntervals],
    part: State,
) -> Shown:
    view = view_of(part, intervals=intervals)
    files = {
        path: FileEntry(sha256_hex(file.data), len(file.data), file.rows)
        for path, file in view.files.items()
    }
    return Shown(state, measurements, intervals, files, view.intervals)


def _touched(
    last: Shown,
    state: State,
    intervals: Mapping[str, VersionIntervals],
    added: Iterable[pa.Table],
) -> pa.Array:
    """Return the kernel types, as identities, whose rows may differ from before."""
    before = last.state
    new = [table.select(_CASE) for table in added]
    for name in ("cases", "profiles"):
        new.append(differing(getattr(before, name), getattr(state, name)).select(_CASE))
    cases = pa.concat_tables([before.cases, state.cases]).select((*_CASE, "kernel_type"))
    # The stack of a version decides which rows are displayed, its model all else.
    models = (
        {path: (one.versions[path].stack.text, found.model) for path, found in of.items()}
        for one, of in ((before, last.intervals), (state, intervals))
    )
    old, now = models
    other = [path for path in old.keys() | now.keys() if old.get(path) != now.get(path)]
    is_new = is_among(cases, _CASE, identities(pa.concat_tables(new), _CASE))
    is_other = pc.is_in(cases["version_path"], value_set=pa.array(other, TEXT))
    return identities(cases.filter(pc.or_(is_new, is_other)), _KERNEL)


def _with_shared_files(kernels: pa.Table, touched: pa.Array) -> pa.Array:
    """Return these kernel types and those whose collectives share a file with one of them."""
    pairs = distinct(kernels.filter(is_among(kernels, _KERNEL, touched)), _KERNEL)
    files = {(layout.collective_folder(path), kind) for path, kind in pairs if is_collective(kind)}
    if not files:
        return touched
    shared = (
        (path, kind)
        for path, kind in distinct(kernels, _KERNEL)
        if (layout.collective_folder(path), kind) in files
    )
    columns = dict(zip(_KERNEL, map(list, zip(*{*pairs, *shared}, strict=True)), strict=True))
    return identities(pa.table({name: pa.array(columns[name], TEXT) for name in _KERNEL}), _KERNEL)


# The claims of a database about campaigns, compared with the objects under `campaigns/`. All plans,
# shards, manifests and parts that commits name are read again, as a merge reads them.

_ORIGIN = ("campaign", "shard", "attempt", "session")
_ID = ("measurement",)
_NO_ROWS = MEASUREMENT_SCHEMA.empty_table()
_ROW_COLUMNS = tuple(name for name in MEASUREMENT_SCHEMA.names if name != "final")


def origin_problems(
    store: Store,
    plans: Mapping[MergedPlan, int],
    tables: Mapping[str, tuple[int, pa.Table]],
    *,
    with_raw: bool,
) -> Iterator[tuple[int, str]]:
    """Return the commit and the line of each wrong claim. The claims are plans and, by their key,
    files of measurements, each with the first commit that makes it.

    The records of the profiler are read again only `with_raw`."""
    shards = (distinct(rows, ("campaign", "shard")) for _, rows in tables.values())
    published = frozenset[tuple[str, str]]().union(*shards)
    read = {plan: _read(store, plan, published) for plan in sorted(plans)}
    checked = set[str]()  # plans may share a shard
    for plan, found in read.items():
        yield from ((plans[plan], text) for text in found.problems)
        if with_raw:
            own = (record for record in found.records if record.stored.key not in checked)
            records = {record.stored.key: record for record in own}
            checked.update(records)
            yield from ((plans[plan], t) for t in record_problems(store, records.values()))
    unreadable_prefixes = frozenset[str]().union(
        *(found.unreadable_prefixes for found in read.values())
    )
    stored = pa.concat_tables([found.rows for found in read.values()] or [_NO_ROWS])
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


def _read(store: Store, merged: MergedPlan, published: Collection[tuple[str, str]]) -> _ShardRows:
    """Return the content of a plan's shards. Only problems of published shards count."""
    try:
        plan = read_plan(store, merged.campaign, merged.number)
    except (BadInput, NotFound) as error:
        key = keys.plan(merged.campaign, merged.number)
        gone = f"{key}: missing, although plan {merged.plan_hash} was merged"
        problem = gone if isinstance(error, NotFound) else str(error)
        return _ShardRows(_NO_ROWS, (problem,), frozenset({keys.all_attempts(merged.campaign)}))
    results = read_results(store, plan)
    broken = [d for d in results.damaged if (d.campaign, d.shard) in published]
    problems = [damage.reason for damage in broken]
    if other := changed(plan, [merged]):  # this is the problem of all its shards
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
    store: Store, commits: Iterable[Commit] | None = None, *, with_raw: bool = True
) -> list[Problem]:
    """Check these commits, or all of them and their chain; the list is empty if all is correct.

    `with_raw` also reads the records of the profiler."""
    problems: list[Problem] = []
    if commits is None:
        commits, problems = _chain(store)
    check = _Check(store)
    for commit in commits:
        problems += [Problem(commit.number, text) for text in check.commit(commit)]
    origins = origin_problems(store, check.plans, check.rows, with_raw=with_raw)
    return problems + [Problem(*found) for found in origins]


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
        listed = (keys.number_of(info.key, keys.commit) for info in store.list(keys.COMMITS))
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
        problems.append(Problem(keys.number_of(named, keys.commit) or end, fault))
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
class _Check:
    """The data of the commits that were checked so far.

    `tables` are the files of measurements, None for a file that cannot be read. `shown` and `last`
    are the view and the manifest of the last commit. `plans` and `rows` are what the commits claim
    about campaigns, each with the first commit that makes the claim."""

    store: Store
    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    shown: Shown | None = None
    last: SnapshotManifest | None = None
    plans: dict[MergedPlan, int] = field(default_factory=dict)
    rows: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)

    def commit(self, commit: Commit) -> Iterator[str]:
        try:
            manifest = read_manifest(self.store, commit)
        except BadInput as error:
            yield str(error)
            return
        yield from self._lost(commit, manifest)
        self.last = manifest
        self.plans = dict.fromkeys(manifest.plans, commit.number) | self.plans
        broken = list(self._measurements(commit, manifest))
        data: dict[str, bytes] = {}
        broken += self._files(commit, manifest, data)
        yield from broken
        tables = {key: self.tables[key] for key in manifest.measurements}
        whole = {key: table for key, table in tables.items() if table is not None}
        if len(whole) < len(tables) or (manifest.state_files | {INTERVALS}) - data.keys():
            return
        try:
            yield from self._view(commit, manifest, whole, data)
        except BadInput as error:
            yield str(error)

    def _lost(self, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
        if self.last is None:
            return
        for name in ("measurements", "plans"):
            if lost := set(getattr(self.last, name)).difference(getattr(manifest, name)):
                what = f"{min(lost)} was in the previous version and is missing here"
                yield f"{keys.snapshot_manifest(commit.snapshot)}: {what}"

    def _measurements(self, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
        for key in manifest.measurements:
            if key in self.tables:
                continue
            self.tables[key] = None
            try:
                table = snapshot.read_measurements(self.store, key)
                check_rows(table, key)
            except BadInput as error:
                yield str(error)
                continue
            self.tables[key] = table
            self.rows[key] = commit.number, table

    def _files(
        self, commit: Commit, manifest: SnapshotManifest, data: dict[str, bytes]
    ) -> Iterator[str]:
        for path, entry in sorted(manifest.files.items()):
            try:
                found = read_file(self.store, commit, path, entry)
            except BadInput as error:
                yield str(error)
                continue
            if len(found) != entry.size_bytes:
                what = f"expected {entry.size_bytes} bytes, got {len(found)}"
                yield f"{keys.snapshot(commit.snapshot)}{path}: {what}"
            if path in manifest.state_files | {INTERVALS}:
                data[path] = found

    def _view(
        self,
        commit: Commit,
        manifest: SnapshotManifest,
        tables: Mapping[str, pa.Table],
        data: Mapping[str, bytes],
    ) -> Iterator[str]:
        state = snapshot.state_of(commit, manifest, data, tables.values())
        tree: Mapping[str, FileEntry] = manifest.tree
        key = keys.snapshot(commit.snapshot) + INTERVALS
        if commit.view_version == VIEW_VERSION:
            self.shown = shown_after(self.shown, state, tables)
            place = keys.snapshot(commit.snapshot)
            yield from (place + text for text in _differences(self.shown.files, manifest.tree))
            tree, intervals = self.shown.files, self.shown.interval_rows
            parts = snapshot.interval_rows(data[INTERVALS], key=key)
            if not intervals.equals(pa.concat_tables([INTERVAL_SCHEMA.empty_table(), *parts])):
                yield f"{key}: its content does not match the state"
            for path in state.versions:
                data_of, rows = index_bytes(state.cases, intervals, path)
                promised = manifest.files[index_path(path)]
                if (sha256_hex(data_of), rows) != (promised.sha256, promised.rows):
                    yield f"{place}{index_path(path)}: its content does not match the state"
        else:
            intervals = read_parquet(data[INTERVALS], key=key)
        if intervals.num_rows != (expected := manifest.files[INTERVALS].rows):
            yield f"{key}: expected {expected} rows, got {intervals.num_rows}"
        hashes = {path: file.sha256 for path, file in tree.items()}
        if commit.content_hash != (found := content_hash_of(state, hashes, intervals)):
            what = f"content_hash: expected {found}, as computed from the state, got "
            yield f"{keys.commit(commit.number)}: {what}{commit.content_hash}"


def _differences(view: Mapping[str, FileEntry], promised: Mapping[str, FileEntry]) -> Iterator[str]:
    """Return the differences between the view of a state and the tree of a manifest, by path."""
    for path in sorted({*view, *promised}):
        if path not in view or path not in promised:
            where = "the snapshot" if path in promised else "its state's view"
            yield f"{path}: exists only in {where}"
        elif view[path].sha256 != promised[path].sha256:
            yield f"{path}: its content does not match the state"
        elif view[path].rows != promised[path].rows:
            yield f"{path}: expected {promised[path].rows} rows, got {view[path].rows}"


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
    named = _named(store)
    found: dict[str, str] = {}
    for prefix in (keys.CAMPAIGNS, keys.DATABASE):
        for info in store.list(prefix):
            for stray in _of_object(info, named):
                found.setdefault(stray.key, stray.reason)
    if is_hint_damaged(store):
        found[keys.HEAD] = _DAMAGED_HINT
    return [Stray(key, reason) for key, reason in sorted(found.items())]


@dataclass(slots=True)
class _Named:
    """The objects that the versions name: snapshots, with the keys below them, and files of
    measurements."""

    snapshots: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)
    is_all: bool = True  # whether every version could be read


def _named(store: Store) -> _Named:
    named = _Named()
    try:
        for commit in history(store):
            place = keys.snapshot(commit.snapshot)
            named.snapshots.add(place)
            manifest = read_manifest(store, commit)
            named.objects |= {place + path for path in manifest.files} | set(manifest.measurements)
            named.objects.add(keys.snapshot_manifest(commit.snapshot))
    except BadInput:  # reported by the check of the versions
        named.is_all = False
    return named


def _of_object(info: Info, named: _Named) -> Iterator[Stray]:
    place = "/".join(info.key.split("/")[:3]) + "/"
    if not keys.is_ours(info.key):
        yield Stray(info.key, "not a key of this project")
    elif info.size_bytes == 0:
        yield Stray(info.key, "empty object")
    elif not named.is_all or not info.key.startswith((keys.SNAPSHOTS, keys.MEASUREMENTS)):
        return
    elif info.key.startswith(keys.SNAPSHOTS) and place not in named.snapshots:
        yield Stray(place, "no version uses this snapshot")
    elif info.key not in named.objects:
        yield Stray(info.key, "no version names it")
