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
from collector.database.card import card_of, croissant_json, dataset_md
from collector.database.cleanup import OF_VERSIONS, NamedObjects, named_objects
from collector.database.commits import (
    Commit,
    end_of_log,
    is_hint_damaged,
    is_hinted,
    read_commit,
)
from collector.database.committed import RawRecord, is_slip, record_problems
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_KEY, VersionIntervals, intervals_of
from collector.database.lent import pairs_table
from collector.database.manifest import (
    FileEntry,
    SnapshotManifest,
    StoredFile,
    VersionEntry,
    VersionFiles,
    collective_files,
    own_files,
    read_file,
    read_manifest,
    read_version_files,
)
from collector.database.parquet import read_parquet
from collector.database.plan_state import MergedPlans, read_results
from collector.database.plans import MergedPlan, changed, read_plan
from collector.database.rows import check_rows
from collector.database.state import (
    MEASUREMENT_SCHEMA,
    State,
    differing,
    distinct,
    identities,
    is_among,
)
from collector.database.view import (
    VIEW_VERSION,
    collective_tables,
    content_hash_of,
    content_hash_of_version,
    view_of,
)
from collector.model import keys
from collector.model.plan import Plan
from collector.store.base import Info, Store

# The view of a version directory at each commit that changed it, computed from its state, in the
# order of the log. Only the files that depend on rows which the previous one lacks are rendered:
# those of the kernel types of these rows' cases, or all if the stack or the model of variance
# differs.

_CASE = ("version_path", "case")
_KERNEL = ("version_path", "kernel_type")


@dataclass(frozen=True, slots=True)
class Shown:
    """The view of a version directory without its collectives, and the files of measurements that
    its state was read from, by name."""

    state: State
    measurements: frozenset[str]
    intervals: VersionIntervals
    files: Mapping[str, FileEntry]
    interval_rows: pa.Table


def shown_after(before: Shown | None, path: str, state: State, names: frozenset[str]) -> Shown:
    """Return the view of a version directory in a state, given its view in an earlier one.

    `names` are those of its files of measurements; a file with the same name is the same in both.
    """
    intervals = intervals_of(state)[path]
    is_other = before is None or not before.measurements <= names
    if before is None or is_other or _differs(before, path, state, intervals):
        return _shown(path, state, names, intervals, state)
    touched = _touched(before.state, state)
    cases = state.cases.filter(is_among(state.cases, _KERNEL, touched))
    # The part of the state that the files of the touched kernel types depend on.
    is_own = is_among(state.measurements, _CASE, identities(cases, _CASE))
    part = replace(state, cases=cases, measurements=state.measurements.filter(is_own))
    new = _shown(path, state, names, intervals, part)
    kernels = set(pc.unique(cases["kernel_type"]).to_pylist())
    gone = {f"{path}/{layout.OP_MAPPING}"}
    for kernel in kernels:
        file = layout.kernel_file_name(kernel)
        gone |= {f"{path}/{file}", f"{path}/{layout.UNKNOWN_INPUTS}/{file}"}
    kept = {name: file for name, file in before.files.items() if name not in gone}
    is_gone = is_among(before.interval_rows, _CASE, identities(cases, _CASE))
    rows = pa.concat_tables([before.interval_rows.filter(pc.invert(is_gone)), new.interval_rows])
    rows = rows.sort_by([(name, "ascending") for name in INTERVAL_KEY])
    return replace(new, files={**kept, **new.files}, interval_rows=rows)


def _shown(
    path: str, state: State, names: frozenset[str], intervals: VersionIntervals, part: State
) -> Shown:
    view = view_of(part, intervals={path: intervals})
    files = {
        name: FileEntry(sha256_hex(file.data), len(file.data), file.rows)
        for name, file in view.files.items()
        if name.startswith(f"{path}/")
    }
    return Shown(state, names, intervals, files, view.intervals)


def _differs(before: Shown, path: str, state: State, intervals: VersionIntervals) -> bool:
    """Return whether rows without new measurements may differ: the stack decides which of them are
    displayed, the model all else."""
    stacks = [one.versions[path].stack for one in (before.state, state)]
    return stacks[0] != stacks[1] or before.intervals.model != intervals.model


def _touched(before: State, state: State) -> pa.Array:
    """Return the kernel types, as identities, whose rows may differ from before."""
    new = [state.measurements_beyond(before).select(_CASE)]
    for name in ("cases", "profiles"):
        new.append(differing(getattr(before, name), getattr(state, name)).select(_CASE))
    cases = pa.concat_tables([before.cases, state.cases]).select((*_CASE, "kernel_type"))
    is_new = is_among(cases, _CASE, identities(pa.concat_tables(new), _CASE))
    return identities(cases.filter(is_new), _KERNEL)


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
    shards = (distinct(rows, ("campaign", "shard")) for _, rows in tables.values())
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
    """Check these commits, or all of them and their chain; the list is empty if all is correct.

    `with_raw` also reads the records of the profiler. Of commits up to `since` only the chain and
    the manifests of snapshots are checked: an earlier call has found their content correct."""
    problems: list[Problem] = []
    if commits is None:
        commits, problems = _chain(store)
    log = _Log(store)
    for commit in commits:
        problems += [Problem(commit.number, text) for text in log.read(commit)]
    origins: list[Problem] = []
    claims = _claims(store, log.plans if not since else log.plans_after(since))
    unknown = claims.pop("", [])
    for path in sorted(log.paths | claims.keys()):
        check = _VersionCheck(store, path, since)
        for commit, manifest in log.manifests:
            problems += [Problem(commit.number, text) for text in check.commit(commit, manifest)]
        own = (*claims.get(path, ()), *unknown)
        found = origin_problems(store, own, check.rows, with_raw=with_raw)
        origins += [Problem(*one) for one in found]
    problems += [Problem(*one) for one in _collective_problems(store, log.manifests, since)]
    problems.sort(key=lambda problem: problem.commit)
    return list(dict.fromkeys((*problems, *origins)))


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


@dataclass(slots=True)
class _VersionCheck:
    """The data of one version directory in the commits that were checked so far.

    `tables` are its files of measurements by name, None for a file that cannot be read. `rows` are
    what commits claim to be measured, by key, each with the first commit that makes the claim."""

    store: Store
    path: str
    since: int = 0  # what commits up to this one have is known to be correct
    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    shown: Shown | None = None
    entry: VersionEntry | None = None
    last: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()  # files of measurements of the commits up to `since`
    rows: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)

    def commit(self, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
        entry = manifest.versions.get(self.path)
        if entry is None or entry == self.entry:
            return
        self.entry = entry
        try:
            files = read_version_files(self.store, commit, self.path, entry)
        except BadInput as error:
            yield str(error)
            return
        names = frozenset(files.measurements)
        if lost := self.last - names:
            key = keys.version_manifest(entry.snapshot, self.path)
            yield f"{key}: {min(lost)} was in the previous version and is missing here"
        self.last = names
        if commit.number <= self.since:
            self.known = names
            return
        data: dict[StoredFile, bytes] = {}
        broken = list(self._files(commit, entry, files, data))
        yield from broken
        if broken or any(self.tables[name] is None for name in names):
            return
        try:
            mapping = next((d for f, d in data.items() if f.key.endswith(layout.OP_MAPPING)), None)
            own = {file.key: found for file, found in data.items()}
            measured = [table for table in self.tables.values() if table is not None]
            state = snapshot.version_state(commit, self.path, entry, measured, own, mapping)
            yield from self._numbers(entry, files, state)
            yield from self._view(commit, manifest, (entry, files), state, own)
        except BadInput as error:
            yield str(error)

    def _files(
        self,
        commit: Commit,
        entry: VersionEntry,
        files: VersionFiles,
        data: dict[StoredFile, bytes],
    ) -> Iterator[str]:
        named_by = keys.version_manifest(entry.snapshot, self.path)
        prefix = keys.snapshot(entry.snapshot)
        tree = [StoredFile(prefix + n, one, named_by) for n, one in sorted(files.tree.items())]
        for file in (*own_files(self.path, entry, files), *tree):
            if file.key.startswith(keys.MEASUREMENTS) and _name(file) in self.tables:
                continue
            try:
                found = data[file] = read_file(self.store, file)
                if file.key.startswith(keys.MEASUREMENTS):
                    self._measured(commit, file, found)
            except BadInput as error:
                yield str(error)
                continue
            if len(found) != file.entry.size_bytes:
                yield f"{file.key}: expected {file.entry.size_bytes} bytes, got {len(found)}"

    def _measured(self, commit: Commit, file: StoredFile, data: bytes) -> None:
        name = _name(file)
        self.tables[name] = None
        table = snapshot.measurement_rows(data, self.path, key=file.key)
        check_rows(table, file.key)
        if table.num_rows != file.entry.rows:
            what = f"expected {file.entry.rows} rows, got {table.num_rows}"
            raise BadInput(what, path=file.key)
        self.tables[name] = table
        if name not in self.known:
            self.rows[file.key] = commit.number, table

    def _numbers(self, entry: VersionEntry, files: VersionFiles, state: State) -> Iterator[str]:
        """Return the wrong claims of manifests about the rows of the version directory."""
        key = keys.version_manifest(entry.snapshot, self.path)
        shards = snapshot.measured_shards(state)
        if files.shards != shards:
            yield f"{key}: shards: they do not match the measurements"
        found = (
            state.cases.num_rows,
            snapshot.collective_cases(state.cases),
            state.measurements.num_rows,
            tuple(sorted(shards)),
        )
        claimed = (entry.cases, entry.collectives, entry.measurements, entry.campaigns)
        for name, one, other in zip(_CLAIMS, found, claimed, strict=True):
            if one != other:
                yield f"{key}: {name}: expected {one}, as computed from the state, got {other}"

    def _view(
        self,
        commit: Commit,
        manifest: SnapshotManifest,
        claimed: tuple[VersionEntry, VersionFiles],
        state: State,
        own: Mapping[str, bytes],
    ) -> Iterator[str]:
        entry, files = claimed
        place, path = keys.snapshot(entry.snapshot), self.path
        shown = keys.shown(path, entry.snapshot)
        _, intervals = snapshot.shown_tables(own[shown], path, key=shown)
        if state.cases.num_rows != files.shown.rows:
            yield f"{shown}: expected {files.shown.rows} rows, got {state.cases.num_rows}"
        tree: Mapping[str, FileEntry] = files.tree
        if files.view_version == VIEW_VERSION:
            try:
                lent = snapshot.lent_by_others(self.store, commit, manifest, {path})
            except BadInput:  # reported by the check of that version directory
                return
            whole = replace(state, elsewhere=lent)
            self.shown = shown_after(self.shown, path, whole, frozenset(files.measurements))
            yield from (place + text for text in _differences(self.shown.files, tree))
            now = self.shown.intervals
            if now.prior != entry.prior or now.lent.counts != entry.pairs:
                key = keys.snapshot_manifest(commit.snapshot)
                yield f"{key}: {path}: its prior and pairs do not match the state"
            if not intervals.equals(self.shown.interval_rows):
                yield f"{shown}: its content does not match the state"
            tree, intervals = self.shown.files, self.shown.interval_rows
            for key in self._derived(claimed, state, own):
                yield f"{key}: its content does not match the state"
        hashes = {name: one.sha256 for name, one in tree.items()}
        version = state.versions[path]
        found = content_hash_of_version(state.measurements, version, hashes, intervals)
        if entry.content_hash != found:
            what = f"content_hash: expected {found}, as computed from the state, got "
            yield f"{keys.version_manifest(entry.snapshot, path)}: {what}{entry.content_hash}"

    def _derived(
        self,
        claimed: tuple[VersionEntry, VersionFiles],
        state: State,
        own: Mapping[str, bytes],
    ) -> Iterator[str]:
        """Return the keys of the files that do not follow from what the version shows."""
        (entry, files), path, shown = claimed, self.path, self.shown
        assert shown is not None
        index, rows = index_bytes(state.cases, shown.interval_rows, path)
        if (sha256_hex(index), rows) != (files.index.sha256, files.index.rows):
            yield keys.index(entry.snapshot, path)
        key = keys.pairs(entry.snapshot, path)
        if not read_parquet(own[key], key=key).equals(pairs_table(shown.intervals.lent)):
            yield key
        stack = state.versions[path].shown_stack
        card = card_of(path, stack, (state.measurements, state.cases, shown.interval_rows))
        if own[key := keys.dataset(entry.snapshot, path)] != dataset_md(card):
            yield key
        croissant = croissant_json(card, entry.snapshot, files.shown, files.measurements)
        if own[key := keys.croissant(entry.snapshot, path)] != croissant:
            yield key


def _name(file: StoredFile) -> str:
    """Return the name of the snapshot that added a file of measurements."""
    return file.key.rpartition("/")[2].removesuffix(".parquet")


_CLAIMS = ("cases", "collectives", "measurements", "campaigns")


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
    yield from (place + text for text in _differences(shown, promised))


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
