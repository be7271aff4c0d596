"""Tables as sets of rows: which rows of one another has, cell for cell."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from collector.database.state import TEXT


def beyond(table: pa.Table, base: pa.Table) -> pa.Table:
    """The rows of a table that another of the same columns does not have."""
    names = table.column_names
    return table.filter(pc.invert(is_among(table, names, identities(base, names))))


def is_among(table: pa.Table, names: Iterable[str], rows: pa.Array) -> pa.Array:
    """For each row whether it is one of those, by these columns."""
    return pc.is_in(identities(table, names), value_set=rows)


def identities(table: pa.Table, names: Iterable[str]) -> pa.Array:
    """Each row as one text: the length of every cell, then the cell."""
    texts: list[pa.ChunkedArray] = []
    for name in names:
        text = pc.cast(table[name], TEXT)
        size = pc.cast(pc.binary_length(text), TEXT)  # of an absent cell there is none
        texts += [pc.fill_null(size, ""), pc.fill_null(text, "")]
    return pc.binary_join_element_wise(*texts, pa.scalar(" ", TEXT)).combine_chunks()
