"""Whether a database is what its commits say: every promise is checked, and every break listed.

Checked are the chain of commits; for each commit the manifest, every file's hash, size and rows,
every measurement's id, and that the CSVs and the content hash follow from the state; and what the
commits say of campaigns (`origins.py`), down to what the profiler recorded. Every object is read
once, however many commits name it.

What another edition of the view showed, this program cannot render: of such commits the CSVs are
checked by their hashes alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from collector import keys
from collector.database.commits import Commit, end_of_log, read_commit
from collector.database.head_hint import is_hinted
from collector.database.measurement_rows import check_rows
from collector.database.origins import Claims, origin_problems
from collector.database.sealed import is_slip
from collector.database.shown import Shown, ShownFile, shown_after
from collector.database.snapshot import read_file, read_manifest, read_measurements, state_of
from collector.database.snapshot_manifest import FileEntry, SnapshotManifest
from collector.database.state import State
from collector.database.view import EDITION, content_hash_of
from collector.errors import BadInput, NotFound
from collector.store.base import Store


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


def of_other_editions(store: Store, commits: Iterable[Commit] | None = None) -> int:
    """How many of these commits, or of all that can be read, were shown by another edition of the
    view, so that `find_problems` does not render them."""
    chosen = _chain(store)[0] if commits is None else commits
    return sum(commit.view_edition != EDITION for commit in chosen)


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
        if commit.view_edition == EDITION:
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
