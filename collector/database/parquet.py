"""Parquet tables of the database, read within bounds.

A Parquet file of some hundred bytes may expand to gigabytes, by repeated values and by compression.
A row of the database's own tables has at least one hash, so that the rows of a file are fewer than
its bytes, and its texts expand to a limited multiple.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.codec.errors import DamagedObject

BATCH_ROWS = 16_384
# A table of 100,000 measurements has 9 times the size of its file, one of cases 13 times.
_MOST_RATIO, _ALWAYS_BYTES = 200, 64 << 20


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as a Parquet file."""
    return parquet_bytes_of([table], table.schema)


def parquet_bytes_of(groups: Iterable[pa.Table], schema: pa.Schema) -> bytes:
    """Return a Parquet file with a row group for each of these tables."""
    out = io.BytesIO()
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for group in groups:
            writer.write_table(group)
    return out.getvalue()


def read_parquet(data: bytes, *, key: str) -> pa.Table:
    """Return a table with the columns that it has. Raises DamagedObject, naming the key."""
    try:
        limits = _Limits(data, key)
        return limits.plain(limits.file.read())
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"expected a Parquet table: {error}", path=key) from error


def parquet_batches(
    data: bytes, *, key: str, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a table, some thousands at a time, with these of its columns.

    Raises DamagedObject, naming the key."""
    try:
        limits = _Limits(data, key)
        known = None if columns is None else [n for n in columns if n in limits.file.schema.names]
        for batch in limits.file.iter_batches(BATCH_ROWS, columns=known, use_threads=False):
            yield limits.plain(pa.table(batch))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedObject(f"expected a Parquet table: {error}", path=key) from error


class _Limits:
    """A file, and the bytes that its rows may still expand to."""

    def __init__(self, data: bytes, key: str) -> None:
        self._key = key
        self._left = max(_ALWAYS_BYTES, _MOST_RATIO * len(data))
        plain = pq.ParquetFile(io.BytesIO(data))
        metadata, schema = plain.metadata, plain.schema_arrow
        if metadata.num_rows > len(data):
            what = f"expected at most a row for each of {len(data)} bytes"
            raise DamagedObject(f"{what}, got {metadata.num_rows} rows", path=key)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        columns = (group.column(at) for group in groups for at in range(group.num_columns))
        self._take(sum(column.total_uncompressed_size for column in columns))
        # As a dictionary, a text that is repeated in a million rows is in memory once.
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        self.file = pq.ParquetFile(io.BytesIO(data), read_dictionary=texts)

    def plain(self, table: pa.Table) -> pa.Table:
        """Return a table with its texts in each row."""
        for at, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                for chunk in table.column(at).chunks:
                    sizes = pc.binary_length(chunk.dictionary)
                    self._take(pc.sum(sizes.take(chunk.indices), min_count=0).as_py())
                column = table.column(at).cast(field.type.value_type)
                table = table.set_column(at, field.name, column)
        return table

    def _take(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            what = f"expected a table of at most {_MOST_RATIO} times its file, got a larger one"
            raise DamagedObject(what, path=self._key)
