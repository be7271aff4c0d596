"""Tables as sets of rows: which rows of one another has, cell for cell."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.state import TEXT

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
