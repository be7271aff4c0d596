"""Whether a database is what its commits say: every promise is checked, and every break listed.

Checked for each commit: its place in the chain, the manifest, every file's hash, size and rows,
every measurement's id, the part each final measurement came from, and that the CSVs and the
content hash follow from the state. Objects that several commits share are read once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from collector import keys
from collector.canonical import sha256_hex
from collector.database.commits import Commit, read_commit
from collector.database.plan_state import check_rows
from collector.database.snapshot import (
    SnapshotManifest,
    load_state,
    read_file,
    read_manifest,
    read_measurements,
)
from collector.database.state import State
from collector.database.view import content_hash, render
from collector.errors import BadInput, NotFound
from collector.store.base import Store


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise; `text` is a line for people, and names the object."""

    commit: int
    text: str


def verify(store: Store, commits: Iterable[Commit] | None = None) -> list[Problem]:
    """Check these commits, or all of them and their chain; an empty list says that all is well."""
    problems: list[Problem] = []
    if commits is None:
        commits, problems = _chain(store)
    objects = _SharedObjects(store)
    for commit in commits:
        problems += [Problem(commit.number, text) for text in _commit_problems(objects, commit)]
    return problems


@dataclass(frozen=True, slots=True)
class _SharedObjects:
    """What was found of objects that many commits name."""

    store: Store
    measurements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    def of_measurements(self, key: str) -> tuple[str, ...]:
        if key not in self.measurements:
            self.measurements[key] = tuple(self._measurement_problems(key))
        return self.measurements[key]

    def _measurement_problems(self, key: str) -> Iterator[str]:
        try:
            table = read_measurements(self.store, key)
            check_rows(table, key)
        except BadInput as error:
            yield str(error)
            return
        for campaign, shard, attempt, session in _origins_of_finals(table):
            part = keys.part(campaign, shard, attempt, session)
            if part not in self._stored_parts(campaign, shard):
                yield f"{key}: a final measurement came from {part}, which is not there"

    def _stored_parts(self, campaign: str, shard: str) -> frozenset[str]:
        where = (campaign, shard)
        if where not in self.parts:
            listing = self.store.list(keys.attempts(campaign, shard))
            self.parts[where] = frozenset(info.key for info in listing)
        return self.parts[where]


def _chain(store: Store) -> tuple[list[Commit], list[Problem]]:
    """Every commit that can be read, and what is wrong with their sequence."""
    commits: list[Commit] = []
    problems: list[Problem] = []
    names = [info.key.rsplit("/", 1)[1] for info in store.list(keys.COMMITS)]
    numbers = [int(name.removesuffix(".json")) for name in names]
    for number in range(1, max(numbers, default=0) + 1):
        try:
            commit = read_commit(store, number)
        except (BadInput, NotFound) as error:
            problems.append(Problem(number, f"the commit cannot be read: {error}"))
            continue
        if commit.parent != number - 1:
            problems.append(Problem(number, f"its parent is {commit.parent}, not {number - 1}"))
        if commits and commit.runtime != commits[0].runtime:
            text = f"its runtime is {commit.runtime}, and the first commit's {commits[0].runtime}"
            problems.append(Problem(number, text))
        commits.append(commit)
    return commits, problems


def _commit_problems(objects: _SharedObjects, commit: Commit) -> Iterator[str]:
    store = objects.store
    try:
        manifest = read_manifest(store, commit)
    except BadInput as error:
        yield str(error)
        return
    broken = list(_file_problems(store, commit, manifest))
    for key in manifest.measurements:
        broken += objects.of_measurements(key)
    yield from broken
    try:
        state = load_state(store, commit, manifest)
    except BadInput as error:
        if not broken:
            yield str(error)
        return
    yield from _view_problems(commit, manifest, state)


def _file_problems(store: Store, commit: Commit, manifest: SnapshotManifest) -> Iterator[str]:
    for path, entry in sorted(manifest.files.items()):
        try:
            data = read_file(store, commit, path, entry)
        except BadInput as error:
            yield str(error)
            continue
        if len(data) != entry.size_bytes:
            yield f"{path}: {entry.size_bytes} bytes were promised, {len(data)} came"


def _view_problems(commit: Commit, manifest: SnapshotManifest, state: State) -> Iterator[str]:
    """Whether the tree is the one that the state shows."""
    view, promised = render(state), manifest.tree
    for path in sorted({*view, *promised}):
        if path not in view or path not in promised:
            where = "the snapshot" if path in promised else "its state's view"
            yield f"{commit.snapshot}: {path} is in {where} only"
        elif sha256_hex(view[path].data) != promised[path].sha256:
            yield f"{commit.snapshot}: {path} does not follow from the state"
        elif view[path].rows != promised[path].rows:
            yield f"{commit.snapshot}: {path} has {view[path].rows} rows, not what is promised"
    found = content_hash(state, view)
    for name, claimed in (("commit", commit.content_hash), ("manifest", manifest.content_hash)):
        if claimed != found:
            yield f"{commit.snapshot}: the {name} claims content {claimed}, the state has {found}"


def _origins_of_finals(table: pa.Table) -> Iterator[tuple[str, str, str, int]]:
    """Campaign, shard, attempt and session of every final measurement, each once."""
    finals = table.filter(table["final"]).select(["campaign", "shard", "attempt", "session"])
    for row in finals.group_by(finals.column_names).aggregate([]).to_pylist():
        yield row["campaign"], row["shard"], row["attempt"], int(row["session"])
