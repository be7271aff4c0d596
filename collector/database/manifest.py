"""The manifest of a snapshot: every file with its hash, and the properties of version directories.

A commit names it by its hash. It is written last, so a snapshot with a manifest is complete. This
module imports no Arrow, so that a program that only queries starts quickly.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from collector.codec.canonical import canonical_json, decode_object, readable_json
from collector.codec.errors import BadInput, DamagedObject, stored
from collector.database import layout
from collector.database.commits import Commit
from collector.database.committed import read_sealed
from collector.database.plans import MergedPlan
from collector.database.versions import Rank, Ranked, Version
from collector.model import keys
from collector.model.stack import Runtime, Stack
from collector.store.base import Store

CASES = "cases.parquet"
PROFILES = "profiles.parquet"
INTERVALS = "intervals.parquet"
_STATE_TABLES = frozenset({CASES, PROFILES})
_TABLES = _STATE_TABLES | {INTERVALS}
_INDEX = "index/"
_WHAT = "a snapshot's manifest"
_SCHEMA = 1


def index_path(version_path: str) -> str:
    """Return the path, inside a snapshot, of the index of a version directory."""
    return f"{_INDEX}{version_path}.bin"


@dataclass(frozen=True, slots=True)
class FileEntry:
    sha256: str
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """`files` by their path inside the snapshot; `measurements` are keys of the store."""

    runtime: Runtime
    content_hash: str
    files: Mapping[str, FileEntry]
    measurements: tuple[str, ...]
    versions: Mapping[str, Version]
    plans: tuple[MergedPlan, ...]

    @property
    def tree(self) -> dict[str, FileEntry]:
        """Return the files that users read: all except the database's own."""
        own = _TABLES.union(map(index_path, self.versions))
        return {path: entry for path, entry in self.files.items() if path not in own}

    @property
    def state_files(self) -> frozenset[str]:
        """Return the files that the state is read from.

        They are the tables of the state, and the files that exist only in the tree."""
        mappings = {
            f"{path}/{layout.OP_MAPPING}" for path, v in self.versions.items() if v.op_mapping
        }
        return _STATE_TABLES | mappings


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """A version as the manifest has it; the text of the op_mapping is in the tree."""

    stack: Stack
    stack_rank: Rank
    op_mapping_rank: Rank | None


@dataclass(frozen=True, slots=True)
class _StoredManifest:
    schema: int
    runtime: Runtime
    content_hash: str
    files: Mapping[str, FileEntry]
    measurements: tuple[str, ...]
    versions: Mapping[str, _StoredVersion]
    plans: tuple[MergedPlan, ...]


def manifest_to_json(manifest: SnapshotManifest) -> bytes:
    value = asdict(manifest)
    value["schema"] = _SCHEMA
    value["versions"] = {
        path: {
            "stack": version.shown_stack.as_json(),
            "stack_rank": version.stack.rank,
            "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
        }
        for path, version in manifest.versions.items()
    }
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> SnapshotManifest:
    """Return the manifest of a snapshot. Raises BadInput, naming the key, for other data."""
    stored = decode_object(_StoredManifest, data, what=_WHAT, key=key)
    try:
        wrong = _contradiction(stored)
    except BadInput as error:  # an invalid name
        wrong = str(error)
    if wrong:
        raise BadInput(f"expected {_WHAT}: {wrong}", path=key)
    versions = {
        path: Version(
            Ranked(one.stack_rank, canonical_json(one.stack.as_json()).decode()),
            None if one.op_mapping_rank is None else Ranked(one.op_mapping_rank, ""),
        )
        for path, one in stored.versions.items()
    }
    return SnapshotManifest(
        *(stored.runtime, stored.content_hash, stored.files, stored.measurements),
        *(versions, stored.plans),
    )


def _contradiction(stored: _StoredManifest) -> str | None:
    if stored.schema != _SCHEMA:
        return f"schema: expected {_SCHEMA}, got {stored.schema}"
    if other := [k for k in stored.measurements if keys.name_of(k, keys.measurements) is None]:
        return f"{ascii(other[0])} is not a key of a measurements file"
    needed = set(_TABLES)
    for path, version in stored.versions.items():
        needed.add(index_path(path))
        if version.stack.version_path != path:
            return f"{ascii(path)} is not the version path of its stack"
        if version.op_mapping_rank is not None:
            needed.add(f"{path}/{layout.OP_MAPPING}")
    if missing := needed - stored.files.keys():
        return f"missing file {min(missing)}"
    if foreign := [
        path
        for path in stored.files.keys() - needed
        if not any(layout.is_file_of(path, version) for version in stored.versions)
    ]:
        return f"file {ascii(min(foreign))} belongs to no version"
    return None


def read_manifest(store: Store, commit: Commit) -> SnapshotManifest:
    """Return the manifest of a commit's snapshot.

    Raises DamagedObject if it is not the one that the commit names, or if it disagrees with the
    commit: its hash is then right, and the error names the commit."""
    key = keys.snapshot_manifest(commit.snapshot)
    named_by = keys.commit(commit.number)
    data = read_sealed(store, key, commit.manifest_sha256, named_by=named_by)
    with stored():
        manifest = manifest_from_json(data, key=key)
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


def read_file(store: Store, commit: Commit, path: str, entry: FileEntry) -> bytes:
    """Return one file of a snapshot, checked against the manifest."""
    key = keys.snapshot(commit.snapshot) + path
    named_by = keys.snapshot_manifest(commit.snapshot)
    return read_sealed(store, key, entry.sha256, named_by=named_by)
