"""Tables as sets of rows."""

import pyarrow as pa
import pytest

from collector.database.state import differing, distinct_pairs, identities, is_among

pytestmark = pytest.mark.fast


def table(*rows: tuple[str, float | None]) -> pa.Table:
    names, values = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"name": pa.array(names, pa.string()), "us": pa.array(values, pa.float64())})


def test_rows_of_only_one_table_are_found_on_both_sides() -> None:
    one, other = table(("a", 1.0), ("b", None)), table(("b", 2.0), ("a", 1.0), ("c", None))
    assert differing(one, other).to_pylist() == [
        {"name": "b", "us": None},
        {"name": "b", "us": 2.0},
        {"name": "c", "us": None},
    ]
    assert differing(one, one).num_rows == 0
    assert differing(table(), one).to_pylist() == one.to_pylist()


def test_rows_are_distinguished_by_cell_boundaries() -> None:
    texts = pa.table({"one": ["a 1", "a"], "other": ["b", "1 b"]})
    assert len(set(identities(texts, texts.column_names).to_pylist())) == 2
    first = identities(texts.slice(0, 1), texts.column_names)
    assert is_among(texts, texts.column_names, first).to_pylist() == [True, False]


def test_distinct_pairs_of_two_columns_are_listed_once() -> None:
    shards = pa.table({"campaign": ["x", "y", "x"], "shard": ["1", "1", "1"], "n": [1, 2, 3]})
    assert distinct_pairs(shards, ("campaign", "shard")) == {("x", "1"), ("y", "1")}
    assert distinct_pairs(shards.slice(0, 0), ("campaign", "shard")) == frozenset()
