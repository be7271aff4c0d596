"""The manifests of a snapshot: the version directories that a commit has, and the files of each.

A commit names the manifest of its snapshot by its hash. That manifest names, for each version
directory, the manifest of the directory, which the commit that last touched it wrote. Manifests are
written last, so a snapshot with a manifest is complete. This module imports no Arrow, so that a
program that only queries starts quickly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain

from collector.codec.canonical import canonical_json, decode_object, readable_json
from collector.codec.errors import BadInput, DamagedObject, stored
from collector.database import layout
from collector.database.commits import Commit
from collector.database.plans import MergedPlan
from collector.database.shard_commits import read_sealed
from collector.database.versions import Rank, Ranked, VersionProperties
from collector.model import keys
from collector.model.stack import Runtime, Stack
from collector.store.base import Store

_WHAT = "a snapshot's manifest"
_WHAT_OF_VERSION = "the manifest of a version directory"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    sha256: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a manifest names: its key in the store, and the key of that manifest."""

    key: str
    entry: FileEntry
    named_by: str


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The files of one version directory, as the commit that last touched it wrote them.

    `tree` has the files that users read, by their path in a tree; `measurements` are by the
    snapshot that added them. `shards` are those that have measurements, by campaign."""

    content_hash: str
    tree: Mapping[str, FileEntry]
    measurements: Mapping[str, FileEntry]  # by the snapshot that added them
    shown: FileEntry
    profiles: FileEntry
    pairs: FileEntry
    index: FileEntry
    dataset: FileEntry
    croissant: FileEntry
    shards: Mapping[str, tuple[str, ...]]
    view_version: int  # of the program that rendered the tree


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A version directory as a snapshot's manifest names it.

    `snapshot` is the one that has its files, and `sha256` the hash of its manifest there. `prior`
    identifies what its model of variance takes from other version directories; `pairs` are the
    numbers of pairs of sessions that it lends to them, of kernels and of collectives.
    `collectives` is its number of cases over several ranks."""

    snapshot: str
    sha256: str
    content_hash: str
    prior: str
    pairs: tuple[int, int]
    cases: int
    collectives: int
    measurements: int
    campaigns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionEntry(_Entry):
    version: VersionProperties


@dataclass(frozen=True, slots=True)
class CollectiveFiles:
    """The CSVs of a folder of collectives, by their path in a tree, and the snapshot that has
    them."""

    snapshot: str
    files: Mapping[str, FileEntry]
    view_version: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The content of a commit: version directories by their path, and folders of collectives."""

    runtime: Runtime
    content_hash: str
    versions: Mapping[str, VersionEntry]
    collectives: Mapping[str, CollectiveFiles]
    plans: tuple[MergedPlan, ...]

    @property
    def stacks(self) -> dict[str, VersionProperties]:
        """Return the stack of each version directory, without the text of its op_mapping."""
        return {path: entry.version for path, entry in self.versions.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredEntry(_Entry):
    """An entry as the manifest has it; the text of the op_mapping is in the tree."""

    stack: Stack
    stack_rank: Rank
    op_mapping_rank: Rank | None


@dataclass(frozen=True, slots=True)
class _StoredManifest:
    schema: int
    runtime: Runtime
    content_hash: str
    versions: Mapping[str, _StoredEntry]
    collectives: Mapping[str, CollectiveFiles]
    plans: tuple[MergedPlan, ...]


def snapshot_manifest_to_json(manifest: SnapshotManifest) -> bytes:
    value = asdict(manifest)
    value["schema"] = _SCHEMA
    for path, entry in manifest.versions.items():
        version = entry.version
        del value["versions"][path]["version"]
        value["versions"][path] |= {
            "stack": version.shown_stack.as_json(),
            "stack_rank": version.stack.rank,
            "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
        }
    return readable_json(value)


def snapshot_manifest_from_json(data: bytes, *, key: str = "manifest") -> SnapshotManifest:
    """Return the manifest of a snapshot. Raises BadInput, naming the key, for other data."""
    stored = decode_object(_StoredManifest, data, what=_WHAT, key=key)
    try:
        wrong = _contradiction(stored)
    except BadInput as error:  # an invalid name
        wrong = str(error)
    if wrong:
        raise BadInput(f"expected {_WHAT}: {wrong}", path=key)
    entries = {path: _entry(one) for path, one in stored.versions.items()}
    return SnapshotManifest(
        stored.runtime, stored.content_hash, entries, stored.collectives, stored.plans
    )


def _entry(one: _StoredEntry) -> VersionEntry:
    mapping = None if one.op_mapping_rank is None else Ranked(one.op_mapping_rank, "")
    stack = Ranked(one.stack_rank, canonical_json(one.stack.as_json()).decode())
    own = {each.name: getattr(one, each.name) for each in fields(_Entry)}
    return VersionEntry(**own, version=VersionProperties(stack, mapping))


def _contradiction(stored: _StoredManifest) -> str | None:
    if stored.schema != _SCHEMA:
        return f"schema: expected {_SCHEMA}, got {stored.schema}"
    for path, entry in stored.versions.items():
        if entry.stack.version_path != path:
            return f"{ascii(path)} is not the version path of its stack"
        keys.version_manifest(entry.snapshot, path)
    folders = {layout.collective_folder(path): path for path in stored.versions}
    for folder, found in stored.collectives.items():
        keys.snapshot(found.snapshot)
        if folder not in folders:
            return f"folder {ascii(folder)} belongs to no version"
        for path in found.files:
            if not path.startswith(f"{folder}/") or not layout.is_file_of(path, folders[folder]):
                return f"file {ascii(path)} is not in {folder}"
    return None


def read_manifest(store: Store, commit: Commit) -> SnapshotManifest:
    """Return the manifest of a commit's snapshot.

    Raises DamagedObject if it is not the one that the commit names, or if it disagrees with the
    commit: its hash is then right, and the error names the commit."""
    key = keys.snapshot_manifest(commit.snapshot)
    named_by = keys.commit(commit.number)
    data = read_sealed(store, key, commit.manifest_sha256, named_by=named_by)
    with stored():
        manifest = snapshot_manifest_from_json(data, key=key)
    wrong = ""
    for name in ("runtime", "content_hash"):
        reported, claimed = getattr(manifest, name), getattr(commit, name)
        if reported != claimed:
            wrong = wrong or f"{name}: expected {reported}, as in {key}, got {claimed}"
    if foreign := set(commit.plans).difference(manifest.plans):
        plan = min(foreign)
        wrong = wrong or f"merged plan {plan.number} of {plan.campaign} is not in {key}"
    if wrong:
        what = f"{wrong}: the commit was changed after it was written"
        raise DamagedObject(what, path=named_by)
    return manifest


def version_files_to_json(files: DirectoryFiles) -> bytes:
    return readable_json(asdict(files))


def version_files_from_json(data: bytes, *, key: str) -> DirectoryFiles:
    """Return the files of a version directory. Raises BadInput, naming the key, for other data."""
    return decode_object(DirectoryFiles, data, what=_WHAT_OF_VERSION, key=key)


def read_version_files(
    store: Store, commit: Commit, path: str, entry: VersionEntry
) -> DirectoryFiles:
    """Return the files of a version directory. Raises DamagedObject if its manifest is not the one
    that the commit's names."""
    key = keys.version_manifest(entry.snapshot, path)
    named_by = keys.snapshot_manifest(commit.snapshot)
    data = read_sealed(store, key, entry.sha256, named_by=named_by)
    with stored():
        files = version_files_from_json(data, key=key)
    mapping = f"{path}/{layout.OP_MAPPING}"
    wrong = None
    try:
        foreign = [n for n in files.tree if n != mapping and not layout.is_file_of(n, path)]
        for name in files.measurements:
            keys.measurements(path, name)
        for campaign in files.shards:
            keys.campaign_name(campaign)
    except BadInput as error:  # an invalid name
        foreign, wrong = [], str(error)
    if foreign:
        wrong = f"file {ascii(min(foreign))} is not in {path}"
    elif (mapping in files.tree) != (entry.version.op_mapping is not None):
        wrong = f"expected {mapping} as in {named_by}"
    elif files.content_hash != entry.content_hash:
        wrong = f"content_hash: expected {entry.content_hash}, as in {named_by}"
    if wrong:
        raise DamagedObject(f"expected {_WHAT_OF_VERSION}: {wrong}", path=key)
    return files


def tree_files(store: Store, commit: Commit, manifest: SnapshotManifest) -> dict[str, StoredFile]:
    """Return the files that users read, by their path in a tree. Reads the manifest of each version
    directory."""
    found: dict[str, StoredFile] = {}
    for path, entry in manifest.versions.items():
        files = read_version_files(store, commit, path, entry)
        named_by = keys.version_manifest(entry.snapshot, path)
        prefix = keys.snapshot(entry.snapshot)
        found |= {n: StoredFile(prefix + n, one, named_by) for n, one in files.tree.items()}
    return found | collective_files(commit, manifest)


def collective_files(commit: Commit, manifest: SnapshotManifest) -> dict[str, StoredFile]:
    """Return the CSVs of collectives, by their path in a tree."""
    named_by = keys.snapshot_manifest(commit.snapshot)
    return {
        name: StoredFile(keys.snapshot(folder.snapshot) + name, one, named_by)
        for folder in manifest.collectives.values()
        for name, one in folder.files.items()
    }


def own_files(path: str, entry: VersionEntry, files: DirectoryFiles) -> Iterator[StoredFile]:
    """Return the files of a version directory that users do not read: those of its state, and its
    index. Files of measurements come last."""
    named_by = keys.version_manifest(entry.snapshot, path)
    tables = (
        (keys.shown(path, entry.snapshot), files.shown),
        (keys.profiles(entry.snapshot, path), files.profiles),
        (keys.pairs_key(entry.snapshot, path), files.pairs),
        (keys.index(entry.snapshot, path), files.index),
        (keys.dataset(entry.snapshot, path), files.dataset),
        (keys.croissant(entry.snapshot, path), files.croissant),
    )
    measured = ((keys.measurements(path, n), one) for n, one in files.measurements.items())
    return (StoredFile(key, one, named_by) for key, one in chain(tables, measured))


def read_file(store: Store, file: StoredFile) -> bytes:
    """Return a file that a manifest names, checked against its hash."""
    return read_sealed(store, file.key, file.entry.sha256, named_by=file.named_by)
