"""Tables as sets of rows: which rows of one another has, cell for cell."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from collector.database.state import TEXT


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


def identities(table: pa.Table, names: Iterable[str]) -> pa.Array:
    """Each row as one text: the length of every cell, then the cell."""
    texts: list[pa.ChunkedArray] = []
    for name in names:
        text = pc.cast(table[name], TEXT)
        size = pc.cast(pc.binary_length(text), TEXT)  # of an absent cell there is none
        texts += [pc.fill_null(size, ""), pc.fill_null(text, "")]
    return pc.binary_join_element_wise(*texts, pa.scalar(" ", TEXT)).combine_chunks()
