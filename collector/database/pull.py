"""A snapshot as a folder on this machine, in the layout that consumers read.

The folder is written completely or not at all. It may replace an earlier pull, unless a user has
added files, folders or links to it or changed them; a user's op_mapping.yaml stays. If a link leads
to the folder, the link stays.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath

from collector.codec.canonical import decode_object, readable_json, sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import (
    MOST_TABLE_BYTES,
    check_case,
    open_own_file,
    read_small_file,
    refuse_links,
)
from collector.codec.scratch import fresh_folder, replace_folder, restore_folder
from collector.database.commits import Commit
from collector.database.layout import OP_MAPPING, collective_folder
from collector.database.manifest import SnapshotManifest, read_file, read_manifest, tree_files
from collector.database.op_mapping_writing import is_written, written_mapping
from collector.database.snapshot import load_state
from collector.database.view import ViewFile, render
from collector.model.stack import Runtime
from collector.store.base import Store

MARKER = ".opmeter-pull.json"


@dataclass(frozen=True, slots=True)
class _Marker:
    """A pull's record of the folder that it wrote: its commit, and the hash of each file."""

    commit: int
    content_hash: str
    runtime: Runtime
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull. `own_mappings` are the paths of op_mapping.yaml files in the target
    that are a user's, and stayed."""

    files: int
    rows: int
    own_mappings: tuple[str, ...]


def pull_version(
    store: Store,
    commit: Commit,
    target: Path,
    *,
    directory: str | None = None,
    prune_empty: bool = False,
    cache: str | None = None,
) -> Pulled:
    """Write the tree of a commit to `target`, with every file checked against the manifest; with
    `directory` only that version directory, and the collectives of its folder.

    `prune_empty` leaves out rows without a duration; `cache` selects the durations of that state of
    the caches. Raises BadInput if `target`, or the folder that it links to, has anything but an
    unchanged earlier pull."""
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    with file_errors(target, "written"):
        restore_folder(target, _purpose(target))
    _own_mappings(target)  # before anything is read
    manifest = read_manifest(store, commit)
    if directory is not None:
        manifest = _only(manifest, directory)
    if prune_empty or cache is not None:
        files = render(load_state(store, commit, manifest), cache=cache, prune_empty=prune_empty)
    else:
        files = {
            path: ViewFile(read_file(store, file), file.entry.rows)
            for path, file in tree_files(store, commit, manifest).items()
        }
    files = {**files, **_written_mappings(files, manifest.versions)}
    with file_errors(target, "written"):
        own = _replace(target, files, commit)
    return Pulled(len(files), sum(file.rows for file in files.values()), own)


def _written_mappings(
    files: Mapping[str, ViewFile], versions: Iterable[str]
) -> dict[str, ViewFile]:
    """Return the op_mapping.yaml of each version directory whose campaigns gave none."""
    by_folder: dict[str, set[str]] = defaultdict(set)
    for path in map(PurePosixPath, files):
        if path.suffix == ".csv":
            by_folder[str(path.parent)].add(path.stem)
    return {
        f"{version}/{OP_MAPPING}": ViewFile(written_mapping(by_folder[version], version), 0)
        for version in versions
        if f"{version}/{OP_MAPPING}" not in files
    }


def _only(manifest: SnapshotManifest, directory: str) -> SnapshotManifest:
    """Return the manifest with one version directory, and the collectives of its folder."""
    if directory not in manifest.versions:
        raise BadInput(
            f"directory: expected one of {', '.join(sorted(manifest.versions))}, got {directory!r}"
        )
    folder = collective_folder(directory)
    return replace(
        manifest,
        versions={directory: manifest.versions[directory]},
        collectives={name: f for name, f in manifest.collectives.items() if name == folder},
    )


def check_is_real(version_dir: Path) -> None:
    """Raise BadInput if a version folder was pulled from a database of a fake runtime."""
    for folder in (version_dir, *version_dir.resolve().parents):
        marker = _read_marker(folder)
        if marker is not None and marker.runtime is not Runtime.REAL:
            raise BadInput(
                "expected durations measured on a device, got a tree of a fake runtime",
                path=version_dir,
            )


def check_as_pulled(version_dir: Path) -> None:
    """Raise BadInput if a version folder is from a pull, and its CSVs are not as it wrote them."""
    place = version_dir.resolve()
    for folder in place.parents:
        if _read_marker(folder) is not None:
            PulledFolder.of(folder).check_tables(place.relative_to(folder).as_posix())


@dataclass(frozen=True, slots=True)
class PulledFolder:
    """A folder that a pull wrote: its commit, and the hash of each file by its path."""

    folder: Path
    commit: int
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> "PulledFolder":
        """Raise BadInput for any other folder, and for that of a fake runtime."""
        check_is_real(folder)
        if (marker := _read_marker(folder)) is None:
            raise BadInput("expected a folder from `opmeter db pull`", path=folder)
        return cls(folder, marker.commit, marker.files)

    def check_tables(self, folder: str) -> None:
        """Raise BadInput if a CSV below this folder was changed, added or deleted, or is behind a
        link: its durations are not those of the pulled version."""
        there = (self.folder / folder).rglob("*")
        names = {
            path.relative_to(self.folder).as_posix()
            for path in there
            if (path.suffix == ".csv" and not path.name.startswith("."))  # others are not read
            or (path.is_symlink() and path.is_dir())
        }
        begin = f"{folder}/"
        names |= {one for one in self.files if one.startswith(begin) and one.endswith(".csv")}
        for name in sorted(names):
            path = self.folder / name
            with file_errors(path):
                is_there = path.exists() or path.is_symlink()
                found = _difference(path, name, self.files) if is_there else "none"
            if found:
                what = f"expected the file that the pull wrote, got {found}"
                raise BadInput(f"{what}; pull the version again, or query its store", path=path)


def _replace(target: Path, files: Mapping[str, ViewFile], commit: Commit) -> tuple[str, ...]:
    """Write next to the target, then rename. The earlier content is removed last. Return the paths
    of a user's own files, which are carried over."""
    check_case(target.parent, files)
    with fresh_folder(target.parent, _purpose(target)) as fresh:
        for path, file in files.items():
            _write(fresh / _safe(path), file.data)
        hashes = {path: sha256_hex(file.data) for path, file in files.items()}
        marker = _Marker(commit.number, commit.content_hash, commit.runtime, hashes)
        _write(fresh / MARKER, readable_json(asdict(marker)))
        own = _own_mappings(target)  # again: a user may have changed it since the first check
        for path, data in own.items():
            if path not in files:
                raise _added(target / path, "an added file")
            _write(fresh / _safe(path), data)
        replace_folder(fresh, target)
    return tuple(own)


def _purpose(target: Path) -> str:
    return f"pull-{sha256_hex(os.fsencode(target.name))[:8]}"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _own_mappings(target: Path) -> dict[str, bytes]:
    """Return the op_mapping.yaml files that a user added to the target or changed, by their path.
    Raises BadInput if the target has anything else but an earlier pull."""
    if not target.exists():
        return {}
    if not target.is_dir():
        raise BadInput("expected a folder, got a file", path=target)
    if not any(target.iterdir()):
        return {}
    marker = _read_marker(target)
    if marker is None:
        raise BadInput(
            "expected an empty folder or one from `opmeter db pull`, got other files; "
            "pull elsewhere",
            path=target,
        )
    refuse_links(target)
    own: dict[str, bytes] = {}
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        with file_errors(path):
            found = _difference(path, name, marker.files)
            if found in _OWN and path.name == OP_MAPPING:
                data = read_small_file(path, MOST_TABLE_BYTES)
                own |= {} if is_written(data) else {name: data}
                continue
        if found:
            raise _added(path, found)
    return own


def _added(path: Path, found: str) -> BadInput:
    return BadInput(
        f"expected a file of the last pull, got {found}; move it away, or pull into another folder",
        path=path,
    )


_OWN = ("an added file", "a changed file")


def _difference(path: Path, name: str, files: Mapping[str, str]) -> str:
    """Return what a user added or changed at a path of a pulled folder, by its name there; empty if
    it is as the pull wrote it. `files` are those of its marker."""
    if path.is_symlink():
        return "a link"
    if path.is_dir():
        holds_own = any(file.startswith(f"{name}/") for file in files)
        return "" if holds_own else "an added folder"
    if not path.is_file():
        return "a special file"
    if name == MARKER:
        return ""
    if name not in files:
        return "an added file"
    with open_own_file(path) as file:
        is_own = sha256_hex(file.read()) == files[name]
    return "" if is_own else "a changed file"


def _read_marker(folder: Path) -> _Marker | None:
    """Return the marker of a pulled folder; None if the folder is not from a pull. Raises BadInput
    for an unreadable marker, because it may be that of a fake runtime."""
    path = folder / MARKER
    try:
        data = read_small_file(path, MOST_TABLE_BYTES)
    except OSError:
        return None
    return decode_object(_Marker, data, what="the marker of a pulled folder", key=str(path))


def _safe(path: str) -> PurePosixPath:
    """Return a path that stays inside the tree. Raises BadInput for another path in a manifest."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\\" in path:
        raise BadInput(f"expected a path inside a tree, got {path!r}")
    return parts
