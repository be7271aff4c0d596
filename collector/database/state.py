"""The state of the database: a set of rows that only grows.

Every table here maps a key to the row of highest rank, so that a join of two states does not depend
on their order: `a.join(b) == b.join(a)`, `a.join(a) == a`, in any grouping. The CSVs that people
read are a view of a state (`view.py`).

    measurements  one row, written once; only `final` can become true (by its shard's manifest)
    cases         spelling of a case in a version directory, by the plan of highest rank
    profiles      statistics of a case in a source run, on the stack of that run
    versions      properties of a version directory: its stack and its op_mapping
    plans         plans that were merged, wholly or in part

Rows are Arrow tables of text, since a merge moves hundreds of thousands of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.lent import LentPairs
from collector.database.plans import MergedPlan
from collector.database.versions import VersionProperties, shows
from collector.model.row import ROW_COLUMNS
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import BASE_CELLS

TEXT = pa.large_string()
_RANK_FIELDS = [("head_commit", pa.int64()), ("plan", pa.int64()), ("plan_hash", TEXT)]

# A schema begins with the table's key. Of two rows with one key the greater is shown. They are
# compared column by column in the schema's order: first by rank, and last by the whole content.
MEASUREMENT_KEY = ("measurement",)
MEASUREMENT_SCHEMA = pa.schema(
    [
        *(("measurement", TEXT), ("final", pa.bool_()), ("version_path", TEXT)),
        *((name, TEXT) for name in ROW_COLUMNS if name != "measurement"),
    ]
)
CASE_KEY = ("version_path", "case")
CASE_SCHEMA = pa.schema(
    [
        *(("version_path", TEXT), ("case", TEXT), *_RANK_FIELDS, ("kernel_type", TEXT)),
        *((name, TEXT) for name in (*BASE_CELLS, "extra")),
    ]
)
PROFILE_KEY = ("version_path", "case", "stack_id")
PROFILE_SCHEMA = pa.schema(
    [
        *(("version_path", TEXT), ("case", TEXT), ("stack_id", TEXT), *_RANK_FIELDS),
        *(("count", pa.int64()), ("mean_us", pa.float64())),
        *(("median_us", pa.float64()), ("std_us", pa.float64()), ("counters", TEXT)),
    ]
)


@dataclass(frozen=True, slots=True)
class State:
    """Tables sorted by key, with one row for each key: equal states have equal fields.

    It is that of the whole database, or of some of its version directories."""

    measurements: pa.Table
    cases: pa.Table
    profiles: pa.Table
    versions: Mapping[str, VersionProperties]
    plans: frozenset[MergedPlan]
    # What version directories outside of this state lend to those inside.
    elsewhere: Mapping[str, LentPairs] = field(default_factory=dict, compare=False)

    @classmethod
    def empty(cls) -> "State":
        return cls.of_rows()

    @classmethod
    def of_rows(
        cls,
        *,
        measurements: Iterable[pa.Table] = (),
        cases: Iterable[pa.Table] = (),
        profiles: Iterable[pa.Table] = (),
        versions: Mapping[str, VersionProperties] | None = None,
        plans: Iterable[MergedPlan] = (),
        elsewhere: Mapping[str, LentPairs] | None = None,
    ) -> "State":
        """Return the state of these rows, which may come in any order and any number of times."""
        return cls(
            _joined(MEASUREMENT_SCHEMA, MEASUREMENT_KEY, measurements),
            _joined(CASE_SCHEMA, CASE_KEY, cases),
            _joined(PROFILE_SCHEMA, PROFILE_KEY, profiles),
            dict(versions or {}),
            frozenset(plans),
            dict(elsewhere or {}),
        )

    def join(self, other: "State") -> "State":
        """Return the rows of both states; of two rows with one key, the one of higher rank."""
        return join_all((self, other))

    def shows(self, stack: Stack) -> bool:
        """Return whether the version directory of a stack exists and shows exactly this stack."""
        return shows(self.versions, stack)

    def measurements_beyond(self, base: "State") -> pa.Table:
        """Return the rows of measurements that a database in state `base` lacks."""
        return filtered(self.measurements, self.is_beyond(base))

    def is_beyond(self, base: "State") -> pa.ChunkedArray:
        """Return for each row of measurements whether a database in state `base` lacks it."""
        known = _identity_of_rows(base.measurements)
        return pc.invert(pc.is_in(_identity_of_rows(self.measurements), value_set=known))

    @property
    def runtimes(self) -> frozenset[Runtime]:
        """Return the runtimes of the measurements."""
        return frozenset(map(Runtime, pc.unique(self.measurements["runtime"]).to_pylist()))


def join_all(states: Iterable[State]) -> State:
    """Return the rows of all states; the empty state for none."""
    joined = tuple(states)
    versions: dict[str, VersionProperties] = {}
    for path, version in (item for state in joined for item in state.versions.items()):
        versions[path] = versions[path].join(version) if path in versions else version
    return State(
        _joined_once(MEASUREMENT_SCHEMA, MEASUREMENT_KEY, [s.measurements for s in joined]),
        _joined_once(CASE_SCHEMA, CASE_KEY, [state.cases for state in joined]),
        _joined_once(PROFILE_SCHEMA, PROFILE_KEY, [state.profiles for state in joined]),
        dict(sorted(versions.items())),
        frozenset(plan for state in joined for plan in state.plans),
        {
            path: lent
            for state in joined
            for path, lent in state.elsewhere.items()
            if path not in versions
        },
    )


def highest_rows(table: pa.Table, key: tuple[str, ...], rank: tuple[str, ...]) -> pa.Table:
    """Return for each key the row that comes last by `rank`, sorted by key. If no key occurs twice,
    as in most merges, ranks are not compared and rows are not filtered: both take many times as
    long as the rest."""
    ordered = _sorted(table, key)
    is_last = _is_last_of_key(ordered, key)
    if not pc.all(is_last, min_count=0).as_py():
        ordered = _sorted(table, (*key, *rank)).filter(is_last)
    return ordered.combine_chunks()


def _sorted(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]))


def _joined(schema: pa.Schema, key: tuple[str, ...], tables: Iterable[pa.Table]) -> pa.Table:
    filled = [table for table in tables if table.num_rows]
    if not filled:
        return schema.empty_table()
    names = [name for name in schema.names if name in filled[0].column_names]
    filled = [table.select(names) for table in filled]
    rank = tuple(name for name in names if name not in key)
    return highest_rows(pa.concat_tables(filled), key, rank)


def _joined_once(schema: pa.Schema, key: tuple[str, ...], tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of tables of states, without a copy if only one of them has rows."""
    filled = [table for table in tables if table.num_rows]
    return filled[0] if len(filled) == 1 else _joined(schema, key, filled)


def _is_last_of_key(ordered: pa.Table, key: tuple[str, ...]) -> Any:
    rows = ordered.num_rows
    if rows == 0:
        return pa.array([], pa.bool_())
    differs: Any = None
    for name in key:
        column = ordered[name].combine_chunks()
        changed = pc.not_equal(column.slice(0, rows - 1), column.slice(1))
        differs = changed if differs is None else pc.or_(differs, changed)
    return pa.concat_arrays([differs, pa.array([True])])


def _identity_of_rows(measurements: pa.Table) -> Any:
    """Return the identity of each row in the set of measurements: its id, whether it is final, and
    its outcome, which another version of this program may decide differently."""
    flags = pc.cast(measurements["final"], TEXT)
    columns = (measurements["measurement"], flags, measurements["outcome"])
    return pc.binary_join_element_wise(*columns, pa.scalar(" ", TEXT))


# Tables as sets of rows: which rows a table shares with another, cell for cell.

_MOST_CODES = 2**62


def differing(one: pa.Table, other: pa.Table) -> pa.Table:
    """Return the rows that only one of two tables with the same columns has."""
    names = one.column_names
    rows, others = identities(one, names), identities(other, names)
    alone = one.filter(pc.invert(pc.is_in(rows, value_set=others)))
    return pa.concat_tables([alone, other.filter(pc.invert(pc.is_in(others, value_set=rows)))])


def distinct_pairs(table: pa.Table, names: tuple[str, str]) -> frozenset[tuple[str, str]]:
    """Return the pairs of texts in two columns, each pair once."""
    one, other = names
    found = table.group_by([one, other]).aggregate([]).to_pydict()
    return frozenset(zip(found[one], found[other], strict=True))


def is_among(table: pa.Table, names: Iterable[str], rows: pa.Array) -> pa.Array:
    """Return for each row whether it is among `rows`, by these columns."""
    return pc.is_in(identities(table, names), value_set=rows)


def places_alike(table: pa.Table, names: Iterable[str]) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the rows with equal texts in these columns, in ascending order."""
    codes, most = np.zeros(table.num_rows, np.int64), 1
    for name in names:
        column = table[name].combine_chunks().dictionary_encode("encode")
        if most * len(column.dictionary) >= _MOST_CODES:
            kinds, codes = np.unique(codes, return_inverse=True)
            most = len(kinds)
        if len(column.dictionary) > 1:
            codes = codes * len(column.dictionary) + column.indices.to_numpy()
            most *= len(column.dictionary)
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def identities(table: pa.Table, names: Iterable[str]) -> pa.Array:
    """Return each row as one text: the length of every cell, then the cell."""
    texts: list[pa.ChunkedArray] = []
    for name in names:
        text = table[name] if table[name].type == TEXT else pc.cast(table[name], TEXT)
        size = pc.cast(pc.binary_length(text), TEXT)  # null for an absent cell
        if text.null_count:
            size, text = pc.fill_null(size, ""), pc.fill_null(text, "")
        texts += [size, text]
    return pc.binary_join_element_wise(*texts, pa.scalar(" ", TEXT)).combine_chunks()


def text_bytes(texts: pa.Array) -> memoryview:
    """Return the bytes of an array of texts, concatenated."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]


def filtered(rows: Any, mask: Any) -> Any:
    """Return the rows of a table or a column for which the mask is true, without a copy if it is
    true for all: copies are most of the memory of a merge."""
    return rows if pc.all(mask, min_count=0).as_py() else rows.filter(mask)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return the table with other values in one of its columns."""
    return table.set_column(table.column_names.index(name), name, values)
