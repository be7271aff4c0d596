"""Durations and counters of rows, grouped by the cells that identify their case.

A file's rows are grouped by the text of their cells, block by block. The cells are interpreted once
per distinct group, when the files are combined. Durations are kept (12 bytes a row) because a
median needs all of them; for counters only sums and counts are kept.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.model.record import ProfileStatistics
from collector.model.vocabulary import GRAPH, LAUNCHED_BY, NOT_KNOWN, OP_STATE, STATIC
from collector.profiles.headers import DURATION, KEY_COLUMNS, NAME, TYPE

Key = tuple[str, ...]
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

_OF_CALLS = "aclnn"
_MOST_CODES = 2**62
_NOWHERE: Places = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one or many blocks: `ids` are indices into `keys`, in order of appearance.

    `sums` and `counts` have a row for each key and a column for each counter; a cell without a
    number is in neither."""

    keys: Sequence[Key]
    ids: Ids
    durations_us: Floats
    sums: Floats
    counts: Counts

    def has_numbers(self) -> bool:
        """Return whether every duration is finite and positive, and every counter finite."""
        durations = (self.durations_us > 0) & (self.durations_us < np.inf)
        return bool(durations.all() and np.isfinite(self.sums).all())


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one label: the first key, durations in ascending order, and counter means."""

    label: Hashable
    key: Key
    durations_us: Floats
    counters: tuple[tuple[str, float], ...]

    @property
    def statistics(self) -> ProfileStatistics:
        return ProfileStatistics(
            count=len(self.durations_us),
            mean_us=float(self.durations_us.mean()),
            median_us=float(np.median(self.durations_us)),
            std_us=float(self.durations_us.std()),
            counters=self.counters,
        )


def rows_in_block(block: pa.Table, counters: Sequence[str]) -> Rows:
    """Return the rows of one block."""
    columns = [
        _launchers(block) if name == LAUNCHED_BY else coded(block, name) for name in KEY_COLUMNS
    ]
    ids, first = numbered([codes for codes, _ in columns], [len(texts) for _, texts in columns])
    texts = [[texts[code] for code in codes[first].tolist()] for codes, texts in columns]
    sums, counts = _totals([block.column(name) for name in counters], ids, len(first))
    keys = list(zip(*texts, strict=True))
    return Rows(keys, ids, block.column(DURATION).to_numpy(), sums, counts)


class FileGroups:
    """The rows of one file, added block by block."""

    def __init__(self, counters: Sequence[str]) -> None:
        self.counters = tuple(counters)
        self._numbers: dict[Key, int] = {}
        self._ids: list[Ids] = []
        self._durations: list[Floats] = []
        self._sums = np.zeros((64, len(counters)))
        self._counts = np.zeros((64, len(counters)), np.int64)

    def add(self, rows: Rows) -> None:
        numbers = self._numbers
        found = [numbers.setdefault(key, len(numbers)) for key in rows.keys]
        to_number = np.array(found, np.int32)
        while len(numbers) > len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids.append(to_number[rows.ids])
        self._durations.append(rows.durations_us)
        self._sums[to_number] += rows.sums
        self._counts[to_number] += rows.counts

    @property
    def keys(self) -> Iterable[Key]:
        """Return the distinct keys, in order of first appearance."""
        return self._numbers.keys()

    def row_counts(self) -> dict[Key, int]:
        """Return how many rows each key has, in order of first appearance."""
        counts = np.zeros(len(self._numbers), np.int64)
        for ids in self._ids:
            counts += np.bincount(ids, minlength=len(counts))
        return dict(zip(self._numbers, counts.tolist(), strict=True))

    def in_order(self, is_selected: Callable[[Key], bool]) -> list[Key]:
        """Return the keys of the selected rows, one per row, in the file's order."""
        selected = {number: key for key, number in self._numbers.items() if is_selected(key)}
        numbers = np.array(list(selected), np.int32)
        if not selected:
            return []
        found = (ids[np.isin(ids, numbers)].tolist() for ids in self._ids)
        return [selected[number] for ids in found for number in ids]

    def rows(self) -> Rows:
        """Return all rows of the file."""
        known = len(self._numbers)
        return Rows(
            keys=list(self._numbers),
            ids=np.concatenate([np.empty(0, np.int32), *self._ids]),
            durations_us=np.concatenate([np.empty(0), *self._durations]),
            sums=self._sums[:known],
            counts=self._counts[:known],
        )


def group_rows(
    files: Sequence[FileGroups],
    label_of: Callable[[Key], Hashable | None],
    *,
    of_all_rows: bool = False,
) -> list[Group]:
    """Return the rows of several files by the label of their key, in order of first appearance.

    Rows whose label is None are left out. `of_all_rows` leaves out counters that lack a number in
    some of a label's rows."""
    if not files:
        return []
    numbers: dict[Hashable, int] = {}
    first_keys: list[Key] = []
    parts = [file.rows() for file in files]
    to_label = []  # the number of each key's label; -1 for those without one
    for part in parts:
        labels = [label_of(key) for key in part.keys]
        for key, label in zip(part.keys, labels, strict=True):
            if label is not None and label not in numbers:
                numbers[label] = len(first_keys)
                first_keys.append(key)
        to_label.append(np.array([numbers.get(label, -1) for label in labels], np.int32))
    ids = np.concatenate([to[part.ids] for to, part in zip(to_label, parts, strict=True)])
    durations = np.concatenate([part.durations_us for part in parts])
    rows = np.bincount(ids[ids >= 0], minlength=len(first_keys))
    least = rows if of_all_rows else np.ones_like(rows)
    means = _means(files, parts, to_label, least)
    small = ids.astype(np.int16) if len(first_keys) < 2**15 else ids  # it sorts faster
    order = np.argsort(small, kind="stable")
    bounds = np.searchsorted(ids[order], np.arange(len(first_keys) + 1))
    return [
        Group(
            label,
            first_keys[at],
            np.sort(durations[order[bounds[at] : bounds[at + 1]]]),
            means[at],
        )
        for at, label in enumerate(numbers)
    ]


def _means(
    files: Sequence[FileGroups], parts: Sequence[Rows], to_label: Sequence[Ids], least: Counts
) -> list[tuple[tuple[str, float], ...]]:
    """Return the means of each label's counters.

    Counters with fewer numbers than `least` of that label are left out."""
    names = tuple(dict.fromkeys(name for file in files for name in file.counters))
    sums, counts = np.zeros((len(least), len(names))), np.zeros((len(least), len(names)))
    for file, part, to in zip(files, parts, to_label, strict=True):
        known = to >= 0
        places = np.array([names.index(name) for name in file.counters], np.intp)
        cells = np.ix_(to[known], places)
        np.add.at(sums, cells, part.sums[known])
        np.add.at(counts, cells, part.counts[known])
    return [
        tuple(
            (name, float(total / count))
            for name, total, count in zip(names, sums[at], counts[at], strict=True)
            if count >= least[at]
        )
        for at in range(len(least))
    ]


def coded(block: pa.Table, name: str) -> tuple[Ids, list[str]]:
    """Return a text column as codes into its distinct texts; a missing column is all empty."""
    if name not in block.column_names:
        return np.zeros(block.num_rows, np.int32), [""]
    column = block.column(name).combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return column.indices.to_numpy(), column.dictionary.to_pylist()


def _launchers(block: pa.Table) -> tuple[Ids, list[str]]:
    """Return which rows are kernels of a graph, built for their shapes.

    The name of a call's kernel starts with the call (`aclnnAdd_...`) or is its type (RmsNorm, in a
    profile of CANN 8.3); the name of a graph's kernel is that of its node. Only the static state
    shows this: a kernel that a graph launches for any shape is the kernel of a call."""
    states, texts = coded(block, OP_STATE)
    static = [code for code, text in enumerate(texts) if text.strip().lower() == STATIC]
    if not static or NAME not in block.column_names:
        return np.zeros(block.num_rows, np.int32), [""]
    columns = (block.column(name).combine_chunks().cast(pa.string()) for name in (NAME, TYPE))
    names, types = map(pc.utf8_trim_whitespace, columns)
    unrecorded = pc.is_in(names, value_set=pa.array(["", NOT_KNOWN]))
    is_call = pc.or_(pc.starts_with(names, _OF_CALLS), pc.equal(names, types))
    recorded = pc.invert(pc.or_(is_call, unrecorded)).to_numpy(zero_copy_only=False)
    return (np.isin(states, static) & recorded).astype(np.int32), ["", GRAPH]


def numbered(columns: Sequence[Ids], sizes: Sequence[int]) -> tuple[Ids, Ids]:
    """Return a number per row for each distinct combination of codes, in order of appearance.

    Also return the first row of each number."""
    combined = np.zeros(len(columns[0]), np.int64)
    distinct = 1
    for codes, size in zip(columns, sizes, strict=True):
        if distinct * size > _MOST_CODES:
            encoded = pa.array(combined).dictionary_encode()
            combined, distinct = (
                encoded.indices.to_numpy().astype(np.int64),
                len(encoded.dictionary),
            )
        combined = combined * size + codes
        distinct *= size
    encoded = pa.array(combined).dictionary_encode()
    ids = encoded.indices.to_numpy()
    first = np.empty(len(encoded.dictionary), np.int32)
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1, dtype=np.int32)
    return ids, first


def _totals(columns: Sequence[pa.ChunkedArray], ids: Ids, groups: int) -> tuple[Floats, Counts]:
    places = ids.astype(np.intp)
    sums = np.zeros((groups, len(columns)))
    counts = np.repeat(np.bincount(places, minlength=groups)[:, None], len(columns), axis=1)
    seen: dict[bytes, Places] = {}
    for at, column in enumerate(columns):
        values, unknown = _numbers(column.combine_chunks(), seen)
        sums[:, at] = np.bincount(places, weights=values, minlength=groups)
        if len(unknown):
            counts[:, at] -= np.bincount(places[unknown], minlength=groups)
    return sums, counts


def _numbers(array: pa.Array, seen: dict[bytes, Places]) -> tuple[Floats, Places]:
    """Return the numbers of a column, 0 where there is none, and the rows that have none.

    Most columns lack their numbers in the same rows, so `seen` caches the rows by bitmap."""
    validity, data = array.buffers()
    values: Floats = np.frombuffer(data, np.float64, len(array), array.offset * 8)
    if not array.null_count:
        return values, _NOWHERE
    bitmap = validity.to_pybytes()
    if bitmap not in seen:
        seen[bitmap] = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
    values = values.copy()
    values[seen[bitmap]] = 0.0
    return values, seen[bitmap]
