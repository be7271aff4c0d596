"""A database as readers see it: its version directories, and how a stack finds its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from collector.codec.errors import BadInput, DamagedObject, NotFound, file_errors
from collector.database import layout
from collector.database.channels import channel_name, commit_of
from collector.database.commits import Commit, find_head, read_commit
from collector.database.index import Index
from collector.database.manifest import (
    SnapshotManifest,
    StoredFile,
    read_file,
    read_manifest,
    read_version_files,
)
from collector.database.retired import check_is_kept
from collector.model import keys
from collector.model.stack import Runtime, version_name
from collector.store.base import Store
from collector.store.opening import open_store
from opmeter.arguments import bad_argument, flag_of, path_of, size_of, text_of
from opmeter.version import Version

if TYPE_CHECKING:
    from collector.database.reuse import Reuse

_MARKER = ".opmeter-pull.json"
_FAKE = "of a fake runtime, not measured on a device"
_NAME = re.compile(r"vllm(.+)_torch(.+)_cann(.+)")
_PARTS = ("vllm", "torch", "cann")
_NEARNESS = ("cann", "vllm", "torch")  # CANN has the kernels, vLLM-Ascend chooses among them


def open(address: str | Path, *, number: int | None = None, channel: str | None = None) -> Database:
    """Open a database at an address (`s3://bucket/prefix`, a folder): in its newest version, in
    version `number`, or in the one that a channel points at; or open a folder that `opmeter db
    pull` wrote, whose CSVs are then read; or a tree of other tools in msmodeling's layout, whose
    durations are in the channel `imported`.

    Raises OpmeterError for an invalid address, for a store without a database, for a version that
    does not exist or is retired, and for damage."""
    folder = path_of("address", address).expanduser()
    if number is not None and channel is not None:
        raise BadInput("expected a number or a channel, got both")
    with file_errors(folder):
        is_pulled = (folder / _MARKER).is_file()
    if is_pulled:
        from opmeter.trees import PulledTree

        return Database(PulledTree(folder))
    if is_tree(folder):
        from opmeter.trees import ImportedTree

        return Database(ImportedTree(folder))
    store = open_store(str(address))
    if channel is not None:
        commit = commit_of(store, channel_name(text_of("channel", channel)))
    elif number is not None:
        commit = _numbered(store, number)
    else:
        return database_now(store)
    check_is_kept(store, commit.number)
    return database_at(store, commit)


def database_now(store: Store) -> Database:
    """Return the newest version in an open store. Raises BadInput if there is none."""
    head = find_head(store)
    if head is None:
        raise BadInput(f"no database at {store.url}: nothing was merged there yet")
    return database_at(store, head)


def is_tree(folder: Path) -> bool:
    """Return whether a folder is a tree of CSVs, or a version directory of one, and not a store."""
    with file_errors(folder):
        if not folder.is_dir() or (folder / keys.DATABASE).exists():
            return False
    return bool(layout.tree_paths(folder)[1])


def _numbered(store: Store, number: int) -> Commit:
    try:
        number = size_of(number)
    except TypeError as error:
        raise bad_argument("number", "the number of a version", number) from error
    try:
        return read_commit(store, number)
    except NotFound as error:
        head = find_head(store)
        newest = "nothing was merged there yet" if head is None else f"the newest is {head.number}"
        raise BadInput(f"no version {number} at {store.url}: {newest}") from error


def database_at(store: Store, commit: Commit) -> Database:
    """Return the database of a commit in an open store."""
    return Database(_Snapshot(store, commit, read_manifest(store, commit)))


class Source(Protocol):
    """The version directories of a database, by their paths."""

    number: int
    runtime: Runtime
    directories: tuple[str, ...]

    def index(self, path: str) -> Index: ...

    def reuses(self, path: str) -> Sequence[Reuse]: ...


class Database:
    """One version of a database. It never changes: open it again to see later merges."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __repr__(self) -> str:
        return f"<Database version {self.number}: {', '.join(self.directories)}>"

    @property
    def number(self) -> int:
        """Return the number of this version of the database."""
        return self._source.number

    @property
    def directories(self) -> tuple[str, ...]:
        """Return the paths of the version directories: `{device}/vllm_ascend/{version}`."""
        return self._source.directories

    def directory_of(
        self,
        device: str,
        *,
        vllm: str = "",
        torch: str = "",
        cann: str = "",
        nearest: bool = False,
        reused: bool = False,
    ) -> Version:
        """Return the version directory of a device and a stack; components that are not given may
        have any version.

        With `nearest`, return the one with the nearest versions if none has these: first of CANN,
        then of vLLM-Ascend, then of torch. `Version.differs` says how far it is.

        With `reused`, cases that `plan --upgrade-from` did not measure again are answered from the
        older stack, in the channel `reused`.

        Raises OpmeterError if there is none, or if several are equally near."""
        named = {"vllm": vllm, "torch": torch, "cann": cann}
        requested = _components(version_name(**{n: text_of(n, text) for n, text in named.items()}))
        nearest = flag_of("nearest", nearest)
        given = {name: requested[name] for name in _PARTS if requested[name] != "0"}
        there = {
            path: _components(path.rpartition("/")[2])
            for path in self.directories
            if path.partition("/")[0] == text_of("device", device)
        }
        if not there:
            devices = ", ".join(sorted({path.partition("/")[0] for path in self.directories}))
            raise BadInput(f"device: expected one of {devices}, got {device!r}")
        distances = {path: _distance(found, given) for path, found in there.items()}
        least = min(distances.values())
        chosen = [path for path, distance in distances.items() if distance == least]
        names = ", ".join(path.rpartition("/")[2] for path in sorted(there))
        is_exact = not any(map(any, least))
        if not is_exact and not nearest:
            shown = " ".join(f"{name} {text}" for name, text in given.items())
            raise BadInput(f"{device}: expected one of {names}, got {shown}; or pass nearest=True")
        if len(chosen) > 1:
            matching = ", ".join(path.rpartition("/")[2] for path in sorted(chosen))
            raise BadInput(f"{device}: several versions match: {matching}; name more components")
        (path,) = chosen
        differs = tuple(
            f"{name} {there[path][name]} instead of {text}"
            for name, text in given.items()
            if there[path][name] != text
        )
        return self._opened(path, differs, reused=reused)

    def directory(self, path: str, *, reused: bool = False) -> Version:
        """Return the version directory at one of the paths of `directories`. See `directory_of` for
        `reused`."""
        if text_of("directory", path) not in self.directories:
            raise BadInput(
                f"directory: expected one of {', '.join(self.directories)}, got {path!r}"
            )
        return self._opened(path, (), reused=reused)

    def _opened(self, path: str, differs: tuple[str, ...], *, reused: bool) -> Version:
        notes = () if self._source.runtime is Runtime.REAL else (_FAKE,)
        cases = None
        if flag_of("reused", reused):
            from opmeter.reused import ReusedCases

            cases = ReusedCases(self._source.reuses(path), self.directory)
        index = self._source.index(path)
        return Version(path, index, differs=differs, notes=notes, reused=cases)


class _Snapshot:
    """The version directories of a snapshot in a store."""

    def __init__(self, store: Store, commit: Commit, manifest: SnapshotManifest) -> None:
        self._store = store
        self._commit = commit
        self._manifest = manifest
        self.number = commit.number
        self.runtime = commit.runtime
        self.directories = tuple(sorted(manifest.versions))

    def index(self, path: str) -> Index:
        """Return the index of a version directory, checked against its hash: read whole, since a
        mapped file that another process changes would change answers. Raises BadInput if `db gc`
        retired the version since it was opened."""
        entry = self._manifest.versions[path]
        key = keys.index(entry.snapshot, path)
        named_by = keys.version_manifest(entry.snapshot, path)
        try:
            files = read_version_files(self._store, self._commit, path, entry)
            data = read_file(self._store, StoredFile(key, files.index, named_by))
        except DamagedObject:
            check_is_kept(self._store, self.number)
            raise
        return Index(memoryview(data), key=key)

    def reuses(self, path: str) -> Sequence[Reuse]:
        """Return what a version directory reuses. The latest decision is the last."""
        from collector.database.reuse import applicable_reuses

        return applicable_reuses(self._store, path, self.number, self._manifest.stacks)


def _components(name: str) -> dict[str, str]:
    found = _NAME.fullmatch(name)
    return dict(zip(_PARTS, found.groups() if found else ("", "", ""), strict=True))


def _distance(
    found: Mapping[str, str], given: Mapping[str, str]
) -> tuple[tuple[int | bool, ...], ...]:
    """Return how far versions are from the given ones, in the order in which they matter."""
    return tuple(_between(found[name], given[name]) if name in given else () for name in _NEARNESS)


def _between(one: str, other: str) -> tuple[int | bool, ...]:
    """Return the difference of each number of two versions, and whether their texts differ."""
    numbers = [[int(part) for part in re.findall(r"\d+", text)][:4] for text in (one, other)]
    padded = [[*part, *[0] * (4 - len(part))] for part in numbers]
    return (*(abs(a - b) for a, b in zip(*padded, strict=True)), one != other)
