"""Whether a database is what its commits say: every promise is checked, and every break listed.

Checked are the chain of commits; for each commit the manifest, every file's hash, size and rows,
every measurement's id, and that the CSVs and the content hash follow from the state; and what the
commits say of campaigns (`origins.py`), down to what the profiler recorded. Every object is read
once, however many commits name it.

What another version of the view rendered, this program cannot render: the CSVs of such commits are
checked by their hashes alone.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, NotFound
from collector.database.commits import Commit, end_of_log, is_hinted, read_commit
from collector.database.committed import RawRecord, is_slip, record_problems
from collector.database.intervals import VersionIntervals, intervals_of
from collector.database.layout import (
    OP_MAPPING,
    OTHER_SETTINGS,
    UNKNOWN_INPUTS,
    collective_folder,
    kernel_file_name,
)
from collector.database.plan_state import read_results
from collector.database.plans import MergedPlan, changed, read_plan
from collector.database.rows import check_rows
from collector.database.snapshot import (
    FileEntry,
    SnapshotManifest,
    read_file,
    read_manifest,
    read_measurements,
    state_of,
)
from collector.database.state import (
    MEASUREMENT_SCHEMA,
    TEXT,
    State,
    differing,
    distinct,
    identities,
    is_among,
)
from collector.database.view import VIEW_VERSION, content_hash_of, render
from collector.model import keys
from collector.ranks.collective import is_collective
from collector.store.base import Store

# What the commits of a log must show, one after the other, each computed from its state.
#
# A commit changes few files of the tree. Only those are rendered that follow from rows which the
# commit before did not have: of the kernel types of the cases that they speak of, and of version
# directories that stand for something else since, or whose variance is known otherwise. The others
# follow from the same rows as before.

_CASE = ("version_path", "case")
_KERNEL = ("version_path", "kernel_type")


@dataclass(frozen=True, slots=True)
class ShownFile:
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The tree that a state shows, and the files of measurements that the state was read from."""

    state: State
    measurements: Mapping[str, pa.Table]
    intervals: Mapping[str, VersionIntervals]
    files: Mapping[str, ShownFile]


def shown_after(before: Shown | None, state: State, measurements: Mapping[str, pa.Table]) -> Shown:
    """The tree of a state, given that of another. `measurements` are by key; a file of one key
    is the same in both."""
    intervals = intervals_of(state)
    if before is None or not before.measurements.keys() <= measurements.keys():
        return Shown(state, measurements, intervals, _rendered(state, intervals))
    added = [table for key, table in measurements.items() if key not in before.measurements]
    touched = _touched(before, state, intervals, added)
    both = pa.concat_tables([before.state.cases.select(_KERNEL), state.cases.select(_KERNEL)])
    touched = _with_shared_files(both, touched)
    gone = {
        file
        for pair in distinct(both.filter(is_among(both, _KERNEL, touched)), _KERNEL)
        for file in _files(*pair)
    }
    kept = {
        path: file
        for path, file in before.files.items()
        if path not in gone and path.rpartition("/")[2] != OP_MAPPING
    }
    shown = _rendered(_of_kernels(state, touched), intervals)
    return Shown(state, measurements, intervals, {**kept, **shown})


def _touched(
    last: Shown,
    state: State,
    intervals: Mapping[str, VersionIntervals],
    added: Iterable[pa.Table],
) -> pa.Array:
    """The kernel types, as identities, whose rows may show otherwise than before."""
    before = last.state
    new = [table.select(_CASE) for table in added]
    for name in ("cases", "profiles"):
        new.append(differing(getattr(before, name), getattr(state, name)).select(_CASE))
    cases = pa.concat_tables([before.cases, state.cases]).select((*_CASE, "kernel_type"))
    other = [
        path
        for path in {*before.versions, *state.versions}
        if _stands_for(before, path) != _stands_for(state, path)
        or _model(last.intervals, path) != _model(intervals, path)
    ]
    is_new = is_among(cases, _CASE, identities(pa.concat_tables(new), _CASE))
    is_other = pc.is_in(cases["version_path"], value_set=pa.array(other, TEXT))
    return identities(cases.filter(pc.or_(is_new, is_other)), _KERNEL)


def _stands_for(state: State, path: str) -> str | None:
    """What of a version decides which rows show: its stack, whichever plan it comes from."""
    version = state.versions.get(path)
    return version.stack.text if version is not None else None


def _model(intervals: Mapping[str, VersionIntervals], path: str) -> object:
    """What decides, beside a case's own measurements, how wide the intervals of a version are."""
    return intervals[path].model if path in intervals else None


def _of_kernels(state: State, kernels: pa.Array) -> State:
    """The part of a state that the files of these kernel types follow from."""
    cases = state.cases.filter(is_among(state.cases, _KERNEL, kernels))
    known = identities(cases, _CASE)
    measurements = state.measurements.filter(is_among(state.measurements, _CASE, known))
    return replace(state, cases=cases, measurements=measurements)


def _rendered(state: State, intervals: Mapping[str, VersionIntervals]) -> dict[str, ShownFile]:
    files = render(state, intervals=intervals)
    return {path: ShownFile(sha256_hex(file.data), file.rows) for path, file in files.items()}


def _with_shared_files(kernels: pa.Table, touched: pa.Array) -> pa.Array:
    """The same with the other version directories whose collectives stand in one file with those
    of a touched one."""
    pairs = distinct(kernels.filter(is_among(kernels, _KERNEL, touched)), _KERNEL)
    files = {_collectives(*pair) for pair in pairs if is_collective(pair[1])}
    if not files:
        return touched
    every = distinct(kernels, _KERNEL)
    shared = [pair for pair in every if is_collective(pair[1]) and _collectives(*pair) in files]
    columns = dict(zip(_KERNEL, map(list, zip(*{*pairs, *shared}, strict=True)), strict=True))
    return identities(pa.table({name: pa.array(columns[name], TEXT) for name in _KERNEL}), _KERNEL)


def _files(path: str, kernel: str) -> list[str]:
    """The files in which the rows of a kernel type may stand."""
    name = kernel_file_name(kernel)
    places = [path, f"{path}/{UNKNOWN_INPUTS}"]
    if is_collective(kernel):
        folder = collective_folder(path)
        places += [folder, f"{folder}/{OTHER_SETTINGS}"]
    return [f"{place}/{name}" for place in places]


def _collectives(path: str, kernel: str) -> str:
    return f"{collective_folder(path)}/{kernel_file_name(kernel)}"


# Whether what a database says of campaigns is what lies under `campaigns/`.
#
# Every measurement came from a part, which a committed manifest names by hash, of a shard of a plan
# that a commit names by hash. All of it is read again, as a merge reads it, and the rows compared.

_ORIGIN = ("campaign", "shard", "attempt", "session")
_ID = ("measurement",)
_NO_ROWS = MEASUREMENT_SCHEMA.empty_table()
_SAID_OF_A_ROW = tuple(name for name in MEASUREMENT_SCHEMA.names if name != "final")


@dataclass(slots=True)
class Claims:
    """What commits say of campaigns, each with the first commit that says it."""

    plans: dict[MergedPlan, int] = field(default_factory=dict)
    rows: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)  # by their file's key

    def add_plans(self, commit: int, plans: Iterable[MergedPlan]) -> None:
        for plan in plans:
            self.plans.setdefault(plan, commit)

    def add_rows(self, commit: int, key: str, rows: pa.Table) -> None:
        self.rows.setdefault(key, (commit, rows))


def origin_problems(
    store: Store, claims: Claims, *, with_raw: bool = True
) -> Iterator[tuple[int, str]]:
    """The commit and the line of each claim that does not hold. What the profiler recorded is read
    again only `with_raw`."""
    published = _shards_of(claims)
    read = {plan: _read(store, plan, published) for plan in sorted(claims.plans)}
    looked_at = set[str]()  # plans may share a shard
    for plan, found in read.items():
        yield from ((claims.plans[plan], text) for text in found.problems)
        if with_raw:
            own = (record for record in found.records if record.stored.key not in looked_at)
            records = {record.stored.key: record for record in own}
            looked_at.update(records)
            yield from ((claims.plans[plan], t) for t in record_problems(store, records.values()))
    told = frozenset[str]().union(*(found.told for found in read.values()))
    stored = pa.concat_tables([found.rows for found in read.values()] or [_NO_ROWS])
    held = identities(stored, _SAID_OF_A_ROW)
    final = identities(stored.filter(stored["final"]), _ID)
    for key, (commit, rows) in claims.rows.items():
        for part, count in _unfounded(rows, held, final):
            if not part.startswith(tuple(told)):
                yield commit, f"{key}: {count} of its measurements do not match {part}"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The rows that a plan's shards hold, what cannot be read of it in lines, the prefixes of keys
    of which these lines tell, and the profiler's records of shards that are published."""

    rows: pa.Table
    problems: tuple[str, ...] = ()
    told: frozenset[str] = frozenset()
    records: tuple[RawRecord, ...] = ()


def _shards_of(claims: Claims) -> frozenset[tuple[str, str]]:
    """Campaign and id of every shard that some measurement came from."""
    found = (distinct(rows, ("campaign", "shard")) for _, rows in claims.rows.values())
    return frozenset[tuple[str, str]]().union(*found)


def _read(store: Store, merged: MergedPlan, published: Collection[tuple[str, str]]) -> _Reading:
    """What a plan left. Of a shard that no commit speaks of nothing is promised."""
    try:
        plan = read_plan(store, merged.campaign, merged.number)
    except NotFound:
        key = keys.plan(merged.campaign, merged.number)
        gone = f"{key}: missing, although plan {merged.plan_hash} was merged"
        return _Reading(_NO_ROWS, (gone,), frozenset({keys.all_attempts(merged.campaign)}))
    except BadInput as error:
        return _Reading(_NO_ROWS, (str(error),), frozenset({keys.all_attempts(merged.campaign)}))
    results = read_results(store, plan)
    broken = [d for d in results.damaged if (d.campaign, d.shard) in published]
    problems = [damage.reason for damage in broken]
    if other := changed(plan, [merged]):  # which is what is wrong with all its shards
        problems = [other.reason, *(d.reason for d in broken if d.key != other.key)]
    told = frozenset(keys.attempts(damage.campaign, damage.shard) for damage in broken)
    records = tuple(r for r in results.records if (plan.campaign, r.shard) in published)
    return _Reading(results.state.measurements, tuple(problems), told, records)


def _unfounded(rows: pa.Table, held: pa.Array, final: pa.Array) -> Iterator[tuple[str, int]]:
    """The keys of parts, and how many rows say that they came from there, and did not: rows that
    no committed part holds (`held` are those that one does), or that are `final` by no manifest."""
    is_held, is_final = is_among(rows, _SAID_OF_A_ROW, held), is_among(rows, _ID, final)
    is_founded = pc.and_(is_held, pc.or_(is_final, pc.invert(rows["final"])))
    unfounded = rows.filter(pc.invert(is_founded)).select(_ORIGIN)
    for row in unfounded.group_by(list(_ORIGIN)).aggregate([([], "count_all")]).to_pylist():
        place = (row["campaign"], row["shard"], row["attempt"], int(row["session"]))
        yield keys.part(*place), row["count_all"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise, at the first commit that makes it; `text` is a line for people, which
    begins with the object's key."""

    commit: int
    text: str

    @property
    def key(self) -> str:
        return self.text.partition(": ")[0]


def find_problems(
    store: Store, commits: Iterable[Commit] | None = None, *, with_raw: bool = True
) -> list[Problem]:
    """Check these commits, or all of them and their chain; an empty list says that all is well.
    `with_raw` reads what the profiler recorded, too."""
    problems: list[Problem] = []
    if commits is None:
        commits, problems = _chain(store)
    check = _Check(store)
    for commit in commits:
        problems += [Problem(commit.number, text) for text in check.commit(commit)]
    origins = origin_problems(store, check.claims, with_raw=with_raw)
    return problems + [Problem(*found) for found in origins]


def of_other_view_versions(store: Store, commits: Iterable[Commit] | None = None) -> int:
    """Return how many of these commits, or of all that can be read, were rendered by another
    version of the view, so that `find_problems` does not render them."""
    chosen = _chain(store)[0] if commits is None else commits
    return sum(commit.view_version != VIEW_VERSION for commit in chosen)


def _chain(store: Store) -> tuple[list[Commit], list[Problem]]:
    """Every commit that can be read, and what is wrong with their sequence."""
    commits: list[Commit] = []
    problems: list[Problem] = []
    end, fault = _end_of(store)
    for number in range(1, end + 1):
        try:
            commit = read_commit(store, number)
        except BadInput as error:
            problems.append(Problem(number, str(error)))
            continue
        except NotFound:
            problems.append(Problem(number, f"{keys.commit(number)}: missing"))
            continue
        commits.append(commit)
    witnesses = _Witnesses(store, {commit.number: commit for commit in commits})
    for before, commit in pairwise(commits):
        problems += _breaks(before, commit, witnesses)
    if fault is not None and not problems:
        named = fault.partition(": ")[0]
        problems.append(Problem(keys.number_of(named, keys.commit) or end, fault))
    return commits, sorted(problems, key=lambda problem: problem.commit)


def _end_of(store: Store) -> tuple[int, str | None]:
    """The number that the log goes up to, and what is wrong there."""
    try:
        log = end_of_log(store)
    except BadInput:  # the newest cannot be read
        listed = (keys.number_of(info.key, keys.commit) for info in store.list(keys.COMMITS))
        return max((number for number in listed if number is not None), default=0), None
    return (log.head.number if log.head else 0), log.fault


@dataclass(frozen=True, slots=True)
class _Witnesses:
    """What names a commit by its hash: the one on top of it, else HEAD.json."""

    store: Store
    commits: Mapping[int, Commit]

    def confirm(self, commit: Commit) -> bool | None:
        """Whether a commit is as it was; None where nobody knows."""
        if child := self.commits.get(commit.number + 1):
            return child.parent_sha256 == commit.sha256
        return is_hinted(self.store, commit.number, commit.sha256)


def _breaks(before: Commit, commit: Commit, witnesses: _Witnesses) -> Iterator[Problem]:
    """What in two commits does not follow from one another, and which of them was changed."""
    key, parent = keys.commit(commit.number), keys.commit(before.number)
    if commit.parent == before.number and commit.parent_sha256 != before.sha256:
        is_whole = witnesses.confirm(commit)
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
    """What is known of the commits so far: files of measurements, None for what cannot be read,
    what the last one showed, and what all of them say of campaigns."""

    store: Store
    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    shown: Shown | None = None
    last: SnapshotManifest | None = None
    claims: Claims = field(default_factory=Claims)

    def commit(self, commit: Commit) -> Iterator[str]:
        try:
            manifest = read_manifest(self.store, commit)
        except BadInput as error:
            yield str(error)
            return
        yield from self._lost(commit, manifest)
        self.last = manifest
        self.claims.add_plans(commit.number, manifest.plans)
        broken = list(self._measurements(commit, manifest))
        data: dict[str, bytes] = {}
        broken += self._files(commit, manifest, data)
        yield from broken
        tables = {key: self.tables[key] for key in manifest.measurements}
        whole = {key: table for key, table in tables.items() if table is not None}
        if len(whole) < len(tables) or manifest.state_files - data.keys():
            return
        try:
            yield from self._view(commit, manifest, whole, data)
        except BadInput as error:
            yield str(error)

    def _lost(self, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
        """What the commit before held, and this one does not."""
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
                table = read_measurements(self.store, key)
                check_rows(table, key)
            except BadInput as error:
                yield str(error)
                continue
            self.tables[key] = table
            self.claims.add_rows(commit.number, key, table)

    def _files(
        self, commit: Commit, manifest: SnapshotManifest, data: dict[str, bytes]
    ) -> Iterator[str]:
        """Read every file, and keep those that the state is made of."""
        for path, entry in sorted(manifest.files.items()):
            try:
                found = read_file(self.store, commit, path, entry)
            except BadInput as error:
                yield str(error)
                continue
            if len(found) != entry.size_bytes:
                what = f"expected {entry.size_bytes} bytes, got {len(found)}"
                yield f"{keys.snapshot(commit.snapshot)}{path}: {what}"
            if path in manifest.state_files:
                data[path] = found

    def _view(
        self,
        commit: Commit,
        manifest: SnapshotManifest,
        tables: Mapping[str, pa.Table],
        data: Mapping[str, bytes],
    ) -> Iterator[str]:
        state = state_of(commit, manifest, data, tables.values())
        tree: Mapping[str, FileEntry | ShownFile] = manifest.tree
        if commit.view_version == VIEW_VERSION:
            self.shown = shown_after(self.shown, state, tables)
            yield from _view_problems(commit, manifest, self.shown)
            tree = self.shown.files
        hashes = {path: file.sha256 for path, file in tree.items()}
        yield from _content_problems(commit, state, hashes)


def _view_problems(commit: Commit, manifest: SnapshotManifest, shown: Shown) -> Iterator[str]:
    """Whether the tree is the one that the state shows."""
    view, promised, place = shown.files, manifest.tree, keys.snapshot(commit.snapshot)
    for path in sorted({*view, *promised}):
        if path not in view or path not in promised:
            where = "the snapshot" if path in promised else "its state's view"
            yield f"{place}{path}: exists only in {where}"
        elif view[path].sha256 != promised[path].sha256:
            yield f"{place}{path}: its content does not match the state"
        elif view[path].rows != promised[path].rows:
            yield f"{place}{path}: expected {promised[path].rows} rows, got {view[path].rows}"


def _content_problems(commit: Commit, state: State, hashes: Mapping[str, str]) -> Iterator[str]:
    """Whether the content hash follows from the state and the sha256 of each file of its tree."""
    found = content_hash_of(state, hashes)
    if commit.content_hash != found:
        what = (
            f"content_hash: expected {found}, as computed from the state, got {commit.content_hash}"
        )
        yield f"{keys.commit(commit.number)}: {what}"
