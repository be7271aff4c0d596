"""The verification of one version directory: its files, and what it shows, at each commit that
changed it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.database import layout, snapshot
from collector.database.card import card_of, croissant_json, dataset_md
from collector.database.commits import (
    Commit,
)
from collector.database.index_build import index_bytes
from collector.database.intervals import INTERVAL_KEY, VersionIntervals, intervals_of
from collector.database.lent import pairs_table
from collector.database.manifest import (
    DirectoryFiles,
    FileEntry,
    SnapshotManifest,
    StoredFile,
    VersionEntry,
    own_files,
    read_file,
    read_version_files,
)
from collector.database.parquet import read_parquet
from collector.database.rows import check_rows
from collector.database.snapshot_writing import collective_cases, measured_shards
from collector.database.state import (
    State,
    differing,
    identities,
    is_among,
)
from collector.database.view import (
    VIEW_VERSION,
    content_hash_of_version,
    digest_of_rows,
    view_of,
)
from collector.model import keys
from collector.store.base import Store

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


@dataclass(slots=True)
class VersionCheck:
    """The data of one version directory in the commits that were checked so far.

    `tables` are its files of measurements by name, None for a file that cannot be read. `rows` are
    what commits claim to be measured, by key, each with the first commit that makes the claim."""

    store: Store
    path: str
    since: int = 0  # what commits up to this one have is known to be correct
    retired: Collection[int] = ()  # commits of which only the measurements are checked
    tables: dict[str, pa.Table | None] = field(default_factory=dict)
    shown: Shown | None = None
    entry: VersionEntry | None = None
    is_whole: bool = True  # whether all files of the entry were checked
    last: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()  # files of measurements of the commits up to `since`
    rows: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)

    def commit(self, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
        entry = manifest.versions.get(self.path)
        is_kept = commit.number not in self.retired
        if entry is None or (entry == self.entry and (self.is_whole or not is_kept)):
            return
        self.entry, self.is_whole = entry, is_kept
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
        if broken or not is_kept or any(self.tables[name] is None for name in names):
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
        files: DirectoryFiles,
        data: dict[StoredFile, bytes],
    ) -> Iterator[str]:
        named_by = keys.version_manifest(entry.snapshot, self.path)
        prefix = keys.snapshot(entry.snapshot)
        tree = [StoredFile(prefix + n, one, named_by) for n, one in sorted(files.tree.items())]
        for file in (*own_files(self.path, entry, files), *tree):
            is_measured = file.key.startswith(keys.MEASUREMENTS)
            if _name(file) in self.tables if is_measured else not self.is_whole:
                continue
            try:
                found = data[file] = read_file(self.store, file)
                if is_measured:
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

    def _numbers(self, entry: VersionEntry, files: DirectoryFiles, state: State) -> Iterator[str]:
        """Return the wrong claims of manifests about the rows of the version directory."""
        key = keys.version_manifest(entry.snapshot, self.path)
        shards = measured_shards(state)
        if files.shards != shards:
            yield f"{key}: shards: they do not match the measurements"
        found = (
            state.cases.num_rows,
            collective_cases(state.cases),
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
        claimed: tuple[VersionEntry, DirectoryFiles],
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
            yield from (place + text for text in tree_differences(self.shown.files, tree))
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
        found = content_hash_of_version(
            digest_of_rows(state.measurements), version, hashes, intervals
        )
        if entry.content_hash != found:
            what = f"content_hash: expected {found}, as computed from the state, got "
            yield f"{keys.version_manifest(entry.snapshot, path)}: {what}{entry.content_hash}"

    def _derived(
        self,
        claimed: tuple[VersionEntry, DirectoryFiles],
        state: State,
        own: Mapping[str, bytes],
    ) -> Iterator[str]:
        """Return the keys of the files that do not follow from what the version shows."""
        (entry, files), path, shown = claimed, self.path, self.shown
        assert shown is not None
        index, rows = index_bytes(state.cases, shown.interval_rows, path)
        if (sha256_hex(index), rows) != (files.index.sha256, files.index.rows):
            yield keys.index(entry.snapshot, path)
        key = keys.pairs_key(entry.snapshot, path)
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


def tree_differences(
    view: Mapping[str, FileEntry], promised: Mapping[str, FileEntry]
) -> Iterator[str]:
    """Return the differences between the view of a state and the tree of a manifest, by path."""
    for path in sorted({*view, *promised}):
        if path not in view or path not in promised:
            where = "the snapshot" if path in promised else "its state's view"
            yield f"{path}: exists only in {where}"
        elif view[path].sha256 != promised[path].sha256:
            yield f"{path}: its content does not match the state"
        elif view[path].rows != promised[path].rows:
            yield f"{path}: expected {promised[path].rows} rows, got {view[path].rows}"
