"""The state of the database: a set of rows that grows, and never forgets.

Every table here is a map from a key to the row of highest rank, so that joining two states asks
nobody who came first: `a.join(b) == b.join(a)`, `a.join(a) == a`, in any grouping. The CSVs that
people read are a view of a state (`view.py`).

    measurements  one row ever; only `final` can still turn true (its shard's manifest says so)
    cases         how a case is spelled in a version directory, by the plan of highest rank
    profiles      what a source run measured of it, on the stack that the run had
    versions      what a version directory stands for: its stack and its op_mapping
    plans         the plans that were merged, wholly or in part

Rows are Arrow tables of text, since a merge moves hundreds of thousands of them.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.canonical import canonical_json
from collector.database.plans import MergedPlan
from collector.model.plan import Plan
from collector.model.row import ROW_COLUMNS
from collector.model.stack import Runtime, Stack
from collector.model.vocabulary import BASE_CELLS

TEXT = pa.large_string()
_RANK_FIELDS = [("head_commit", pa.int64()), ("plan", pa.int64()), ("plan_hash", TEXT)]

# A schema begins with the table's key; of two rows with one key the greater shows, compared
# column by column in the schema's order: first by rank, and by the whole content at last.
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

Rank = tuple[int, int, str]


def rank_of(plan: Plan) -> Rank:
    """Of two plans that say different things of one case, the greater is believed."""
    return (plan.head_commit, plan.number, plan.plan_hash)


@dataclass(frozen=True, slots=True, order=True)
class Ranked:
    """A text and the rank of the plan it comes from."""

    rank: Rank
    text: str


@dataclass(frozen=True, slots=True)
class Version:
    """What one version directory stands for: the stack and the op_mapping of the highest plan."""

    stack: Ranked  # canonical JSON of the stack
    op_mapping: Ranked | None

    def join(self, other: "Version") -> "Version":
        mappings = [m for m in (self.op_mapping, other.op_mapping) if m is not None]
        return Version(
            stack=max(self.stack, other.stack),
            op_mapping=max(mappings, default=None),
        )

    @property
    def shown_stack(self) -> Stack:
        return Stack.from_json(json.loads(self.stack.text))


def shows(versions: Mapping[str, Version], stack: Stack) -> bool:
    """Whether the version directory of a stack is there and shows this very stack."""
    version = versions.get(stack.version_path)
    return version is not None and version.shown_stack.stack_id == stack.stack_id


def version_of(plan: Plan) -> Version:
    """What one plan alone says of its version directory."""
    rank = rank_of(plan)
    return Version(
        stack=Ranked(rank, canonical_json(plan.stack.as_json()).decode()),
        op_mapping=None if plan.op_mapping is None else Ranked(rank, plan.op_mapping),
    )


@dataclass(frozen=True, slots=True)
class State:
    """Tables sorted by key, one row a key: equal states have equal fields."""

    measurements: pa.Table
    cases: pa.Table
    profiles: pa.Table
    versions: Mapping[str, Version]
    plans: frozenset[MergedPlan]

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
        versions: Mapping[str, Version] | None = None,
        plans: Iterable[MergedPlan] = (),
    ) -> "State":
        """The state that holds these rows, given in any order and any number of times."""
        return cls(
            _joined(MEASUREMENT_SCHEMA, MEASUREMENT_KEY, measurements),
            _joined(CASE_SCHEMA, CASE_KEY, cases),
            _joined(PROFILE_SCHEMA, PROFILE_KEY, profiles),
            dict(versions or {}),
            frozenset(plans),
        )

    def join(self, other: "State") -> "State":
        """Everything that either knows; of two rows with one key, the one of higher rank."""
        return join_all((self, other))

    def shows(self, stack: Stack) -> bool:
        """Whether the version directory of a stack is there and shows this very stack."""
        return shows(self.versions, stack)

    def measurements_beyond(self, base: "State") -> pa.Table:
        """The rows of measurements that a database in state `base` lacks."""
        known = _identity_of_rows(base.measurements)
        return self.measurements.filter(
            pc.invert(pc.is_in(_identity_of_rows(self.measurements), value_set=known))
        )

    @property
    def runtimes(self) -> frozenset[Runtime]:
        """What the measurements say of the devices that they are of."""
        return frozenset(map(Runtime, pc.unique(self.measurements["runtime"]).to_pylist()))


def join_all(states: Iterable[State]) -> State:
    """Everything that any of them knows; the empty state for none."""
    joined = tuple(states)
    versions: dict[str, Version] = {}
    for path, version in (item for state in joined for item in state.versions.items()):
        versions[path] = versions[path].join(version) if path in versions else version
    return State.of_rows(
        measurements=[state.measurements for state in joined],
        cases=[state.cases for state in joined],
        profiles=[state.profiles for state in joined],
        versions=dict(sorted(versions.items())),
        plans=(plan for state in joined for plan in state.plans),
    )


def highest_rows(table: pa.Table, key: tuple[str, ...], rank: tuple[str, ...]) -> pa.Table:
    """For each key the row that comes last by `rank`; the result is sorted by key. Where no key
    stands twice, as in most merges, nobody's rank is asked and no row is left out: both take
    many times as long as all the rest."""
    ordered = _sorted(table, key)
    is_last = _is_last_of_key(ordered, key)
    if not pc.all(is_last, min_count=0).as_py():
        ordered = _sorted(table, (*key, *rank)).filter(is_last)
    return ordered.combine_chunks()


def _sorted(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names]))


def _joined(schema: pa.Schema, key: tuple[str, ...], tables: Iterable[pa.Table]) -> pa.Table:
    """One table of all rows, the greatest for each key."""
    filled = [table.select(schema.names) for table in tables if table.num_rows]
    if not filled:
        return schema.empty_table()
    rank = tuple(name for name in schema.names if name not in key)
    return highest_rows(pa.concat_tables(filled), key, rank)


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
    """A row as the set of measurements knows it: its id, whether it is final, and its outcome,
    which another version of this program may judge otherwise."""
    flags = pc.cast(measurements["final"], TEXT)
    columns = (measurements["measurement"], flags, measurements["outcome"])
    return pc.binary_join_element_wise(*columns, pa.scalar(" ", TEXT))


# Tables as sets of rows: which rows of one another has, cell for cell.

_MOST_CODES = 2**62


def differing(one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows that one of two tables of the same columns has, and the other has not."""
    names = one.column_names
    rows, others = identities(one, names), identities(other, names)
    alone = one.filter(pc.invert(pc.is_in(rows, value_set=others)))
    return pa.concat_tables([alone, other.filter(pc.invert(pc.is_in(others, value_set=rows)))])


def distinct(table: pa.Table, names: tuple[str, str]) -> frozenset[tuple[str, str]]:
    """What two columns of texts say together, each pair once."""
    one, other = names
    found = table.group_by([one, other]).aggregate([]).to_pydict()
    return frozenset(zip(found[one], found[other], strict=True))


def is_among(table: pa.Table, names: Iterable[str], rows: pa.Array) -> pa.Array:
    """For each row whether it is one of those, by these columns."""
    return pc.is_in(identities(table, names), value_set=rows)


def places_alike(table: pa.Table, names: Iterable[str]) -> list[npt.NDArray[np.int64]]:
    """The places of the rows that are alike by these columns of texts, in their order."""
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
    """Each row as one text: the length of every cell, then the cell."""
    texts: list[pa.ChunkedArray] = []
    for name in names:
        text = table[name] if table[name].type == TEXT else pc.cast(table[name], TEXT)
        size = pc.cast(pc.binary_length(text), TEXT)  # of an absent cell there is none
        if text.null_count:
            size, text = pc.fill_null(size, ""), pc.fill_null(text, "")
        texts += [size, text]
    return pc.binary_join_element_wise(*texts, pa.scalar(" ", TEXT)).combine_chunks()


def text_bytes(texts: pa.Array) -> memoryview:
    """An array of texts, one behind the other."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]
