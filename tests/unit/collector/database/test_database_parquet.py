"""Malicious Parquet tables are refused in a line with their key, before they are expanded."""

import io
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.codec.errors import DamagedObject
from collector.database import parquet
from collector.database.parquet import parquet_batches, parquet_bytes, read_parquet
from collector.database.snapshot import interval_rows

pytestmark = pytest.mark.fast

KIB, MIB = 1 << 10, 1 << 20


def written(table, **options):
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", **options)
    return out.getvalue()


def repeated(text, rows):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


CRAFTED = {
    "rows": pa.table({"case": repeated("x", 300_000)}),
    "a long text in each row": pa.table({"case": repeated("x" * 64 * KIB, 800)}),
    "long texts": pa.table({"case": [f"{number}{'x' * 64 * KIB}" for number in range(70)]}),
    "numbers": pa.table({"mean_us": np.zeros(300_000)}),
}


def test_table_that_expands_is_refused_without_expanding(monkeypatch):
    monkeypatch.setattr(parquet, "_ALWAYS_BYTES", MIB)
    for name, table in CRAFTED.items():
        for with_schema in (True, False):
            data = written(table, store_schema=with_schema, dictionary_pagesize_limit=MIB)
            assert len(data) < 10 * KIB, name
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for read in (
                lambda data=data: read_parquet(data, key="db/x"),
                lambda data=data: list(parquet_batches(data, key="db/x")),
                lambda data=data: list(interval_rows(data, "a/vllm_ascend/b", key="db/x")),
            ):
                with pytest.raises(DamagedObject) as refused:
                    read()
                assert refused.value.path == "db/x", name
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert after - before < 20 * KIB, name  # in KiB


def test_table_with_other_types_is_refused():
    for column in (
        pa.array([{"a": 1}]),
        pa.array([[1]]),
        pa.array([b"\xff"]),
        pa.array([None]),
        pa.array([float("nan")]),
        pa.array([-1]),
    ):
        table = pa.table({"mean_us": column, "stack_high_us": column, "sessions": column})
        with pytest.raises(DamagedObject) as refused:
            list(interval_rows(written(table), "a/vllm_ascend/b", key="db/x"))
        assert refused.value.path == "db/x"


def test_truncated_table_is_refused():
    data = written(pa.table({"case": ["a", "b"]}))
    for bad in (b"", b"PAR1", data[:-1], data[:40] + bytes(8) + data[48:], data[::-1]):
        with pytest.raises(DamagedObject):
            read_parquet(bad, key="db/x")


def test_tables_of_a_database_are_read_as_written():
    table = pa.table({"case": ["a", "b", "a"], "mean_us": [1.0, None, 3.0], "empty": ["", "", ""]})
    assert read_parquet(parquet_bytes(table), key="db/x").equals(table)
    (rows,) = parquet_batches(parquet_bytes(table), key="db/x", columns=["mean_us", "absent"])
    assert rows.equals(table.select(["mean_us"]))
