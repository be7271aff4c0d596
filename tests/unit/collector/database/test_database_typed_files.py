"""The typed columns of files reproduce the text of a state, to the last character."""

import io
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput, DamagedObject
from collector.database.columns import (
    MEASUREMENTS,
    SHOWN,
    text_of_measurements,
    text_of_shown,
    typed_measurements,
    typed_shown,
)
from collector.database.merge import CREATE, merge_plans
from collector.database.parquet import parquet_bytes, read_parquet
from collector.database.rows import check_rows
from collector.database.snapshot import load_state, measurement_rows, shown_tables
from collector.database.snapshot_writing import SHOWN_SCHEMA
from collector.database.state import MEASUREMENT_SCHEMA, TEXT
from collector.model import keys
from collector.model.row import COLUMNS
from collector.store.in_memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

NAMES = [name for name in MEASUREMENT_SCHEMA.names if name != "version_path"]
KINDS = {column.name: column for column in COLUMNS}


def cell(name: str) -> st.SearchStrategy[object]:
    if name == "final":
        return st.booleans()
    column = KINDS.get(name)
    if column is not None and column.words:
        return st.sampled_from(column.words)
    if column is not None and column.type is int:
        return st.integers(0, 10**17).map(str)
    if column is not None and column.type is float:
        numbers = st.floats(allow_nan=False, allow_infinity=False)
        return st.just("") | numbers.map(repr)
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)


@given(st.lists(st.fixed_dictionaries({name: cell(name) for name in NAMES}), max_size=4))
def test_typed_measurements_preserve_every_text(rows: list[dict[str, object]]) -> None:
    columns = {
        name: pa.array([row[name] for row in rows], MEASUREMENT_SCHEMA.field(name).type)
        for name in NAMES
    }
    table = pa.table(columns)
    data = parquet_bytes(typed_measurements(table, "D", "V"))
    assert text_of_measurements(read_parquet(data, key="db/x")).select(NAMES).equals(table)


def test_typed_files_describe_their_columns() -> None:
    for schema in (MEASUREMENTS, SHOWN):
        out = io.BytesIO()
        pq.write_table(schema.empty_table(), out)
        fields = pq.read_schema(io.BytesIO(out.getvalue()))
        assert all(field.metadata[b"description"] for field in fields)
        assert fields.field("mean_us").metadata[b"unit"] == b"us"


def test_derived_columns_are_times_and_lists() -> None:
    texts = {name: pa.array(["0", "1"], TEXT) for name in NAMES if name != "final"}
    numbers = [name for name, column in KINDS.items() if column.type is float]
    texts |= {name: pa.array(["", "1.5"], TEXT) for name in numbers}
    texts["started_at"] = pa.array(["2026-11-21T16:00:00.123+00:00", "yesterday"], TEXT)
    table = typed_measurements(pa.table({**texts, "final": pa.array([True, False])}), "D", "V")
    expected = [datetime(2026, 11, 21, 16, 0, 0, 123000, UTC), None]
    assert table["started"].to_pylist() == expected
    assert table["device"].to_pylist() == ["D", "D"]
    shown = {
        field.name: pa.nulls(2, field.type)
        if field.name in ("mean_us", "warnings")
        else pa.array(["x", "x"], TEXT)
        if field.type == TEXT
        else pa.array([1, 2]).cast(field.type)
        for field in SHOWN_SCHEMA
    }
    shown["Input Shapes"] = pa.array(['"2,3;;4"', "odd"], TEXT)
    cases = pa.table(shown, schema=SHOWN_SCHEMA)
    table = typed_shown(cases, "D", "V")
    assert table["input_shapes"].to_pylist() == [[[2, 3], None, [4]], None]
    assert table["channel"].to_pylist() == ["measured", "pooled"]
    back = text_of_shown(table)
    assert back.select(SHOWN_SCHEMA.names).cast(SHOWN_SCHEMA).equals(cases)


def test_noncanonical_numbers_are_refused() -> None:
    store, records = MemoryStore(), [add_record(1)]
    write_campaign(store, MadePlan([MadeShard("s", records, [answered(records, 10.0)])]))
    commit = merge_plans(store, [("made", 1)], guard=CREATE, author="test").commit
    rows = load_state(store, commit).measurements
    check_rows(rows, "db/x")
    at = rows.column_names.index("mean_us")
    for text in ("10.00", "+10.0", " 10.0", "1e1", "nan", "ten"):
        with pytest.raises(BadInput, match="^db/x: "):
            check_rows(rows.set_column(at, "mean_us", pa.array([text], TEXT)), "db/x")


def test_table_of_an_older_view_lacks_optional_columns_only() -> None:
    store, records = MemoryStore(), [add_record(1)]
    write_campaign(store, MadePlan([MadeShard("s", records, [answered(records, 10.0)])]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    (key,) = (one.key for one in store.list(keys.SHOWN) if one.key.endswith(".parquet"))
    table = pq.read_table(io.BytesIO(store.get(key)))
    _, shown = shown_tables(parquet_bytes(table.drop_columns(["outlier_share"])), PATH, key=key)
    assert shown["mean_us"].to_pylist() == [10.0]
    assert shown["outlier_share"].to_pylist() == [None]
    with pytest.raises(DamagedObject, match=key):
        shown_tables(parquet_bytes(table.drop_columns(["sessions"])), PATH, key=key)


def test_file_with_other_types_is_damage() -> None:
    table = pa.table({name: pa.array([1]) for name in MEASUREMENTS.names})
    nested = table.set_column(table.column_names.index("case"), "case", pa.array([[{"a": 1}]]))
    for odd in (nested, table.drop_columns(["case"])):
        with pytest.raises(DamagedObject, match="^db/x: "):
            measurement_rows(parquet_bytes(odd), "D/vllm_ascend/V", key="db/x")
