"""The manifest of a snapshot: what it holds, with the hash of every file.

A commit names it by its hash. It is written last, so that a snapshot that has one is whole.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from collector import keys
from collector.canonical import canonical_json, readable_json
from collector.database.layout import OP_MAPPING, is_collective_file, is_kernel_file_name
from collector.database.plans import MergedPlan
from collector.database.state import Rank, Ranked, Version
from collector.decoding import decode_object
from collector.errors import BadInput
from collector.stack import Runtime, Stack

CASES = "cases.parquet"
PROFILES = "profiles.parquet"
_TABLES = frozenset({CASES, PROFILES})
_WHAT = "a snapshot's manifest"
_SCHEMA = 1


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
        """The files that people read: all but the database's own tables."""
        return {path: entry for path, entry in self.files.items() if path not in _TABLES}

    @property
    def state_files(self) -> frozenset[str]:
        """The files that the state is read from: the tables, and what the tree alone holds."""
        mappings = {f"{path}/{OP_MAPPING}" for path, v in self.versions.items() if v.op_mapping}
        return _TABLES | mappings


@dataclass(frozen=True, slots=True)
class _StoredVersion:
    """As the manifest spells it; the text of the op_mapping lies in the tree."""

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
    value["versions"] = {path: _version_json(v) for path, v in manifest.versions.items()}
    return readable_json(value)


def manifest_from_json(data: bytes, *, key: str = "manifest") -> SnapshotManifest:
    """Raises BadInput, naming the key, for anything but a snapshot's manifest."""
    stored = decode_object(_StoredManifest, data, what=_WHAT, key=key)
    try:
        wrong = _contradiction(stored)
    except BadInput as error:  # a name that cannot be one
        wrong = str(error)
    if wrong:
        raise BadInput(f"expected {_WHAT}: {wrong}", path=key)
    return SnapshotManifest(
        runtime=stored.runtime,
        content_hash=stored.content_hash,
        files=stored.files,
        measurements=stored.measurements,
        versions={path: _version(version) for path, version in stored.versions.items()},
        plans=stored.plans,
    )


def _contradiction(stored: _StoredManifest) -> str | None:
    """What in a manifest cannot be of a snapshot."""
    if stored.schema != _SCHEMA:
        return f"schema: expected {_SCHEMA}, got {stored.schema}"
    if other := [k for k in stored.measurements if keys.name_of(k, keys.measurements) is None]:
        return f"{ascii(other[0])} is not a key of a measurements file"
    needed = set(_TABLES)
    for path, version in stored.versions.items():
        if version.stack.version_path != path:
            return f"{ascii(path)} is not the version path of its stack"
        if version.op_mapping_rank is not None:
            needed.add(f"{path}/{OP_MAPPING}")
    if missing := needed - stored.files.keys():
        return f"missing file {min(missing)}"
    if foreign := [p for p in stored.files.keys() - needed if not _is_shown(p, stored)]:
        return f"file {ascii(min(foreign))} belongs to no version"
    return None


def _is_shown(path: str, stored: _StoredManifest) -> bool:
    """Whether a path is that of a kernel type's CSV in a version directory, or of its
    collectives."""
    if any(is_collective_file(path, folder) for folder in stored.versions):
        return True
    folders = (folder for folder in stored.versions if path.startswith(f"{folder}/"))
    return any(is_kernel_file_name(path.removeprefix(f"{folder}/")) for folder in folders)


def _version_json(version: Version) -> dict[str, object]:
    return {
        "stack": version.shown_stack.as_json(),
        "stack_rank": version.stack.rank,
        "op_mapping_rank": version.op_mapping.rank if version.op_mapping else None,
    }


def _version(stored: _StoredVersion) -> Version:
    mapping = stored.op_mapping_rank
    return Version(
        stack=Ranked(stored.stack_rank, canonical_json(stored.stack.as_json()).decode()),
        op_mapping=None if mapping is None else Ranked(mapping, ""),
    )
