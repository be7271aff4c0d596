"""Lengths and head counts of attention from a row's `Runtime ...` columns, with defaults.

A row has one reading: values in columns are used unchanged, so that a row whose columns were filled
from a reading gives the same reading again.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from collector.codec.errors import CaseRejected
from collector.codec.numbers import parse_number
from collector.model.case import Case, Shape
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import given

ASSUMES = (
    "queries, and keys without pages, in equal parts; of paged keys the number of pages that "
    "Runtime columns name, spread over the whole pool"
)
_NO_LENGTH = 1 << 40
_BETWEEN = re.compile(r"[;,\s]+")


class NoNumber(CaseRejected):
    """A column without the numbers that it must have."""


def number(case: Case, name: str) -> int | None:
    """Return the whole number in `Runtime {name}`, also in the form 16.0; None without one.

    Raises NoNumber."""
    text = case.attribute(RUNTIME_PREFIX + name)
    return None if text is None else _whole(text)


def runtime_numbers(case: Case, name: str) -> Shape | None:
    """Return the whole numbers in `Runtime {name}`, separated by `,` or `;`; None without any."""
    text = case.attribute(RUNTIME_PREFIX + name)
    parts = [part for part in _BETWEEN.split((text or "").strip("[]() ")) if part]
    return tuple(map(_whole, parts)) or None


def mean(case: Case) -> float | None:
    """Return the mean length of a request's keys, `Runtime avg_seq_len`; None without one."""
    text = case.attribute(RUNTIME_PREFIX + "avg_seq_len")
    try:
        value = None if text is None else parse_number(text)
    except ValueError as error:
        raise NoNumber(text) from error
    if value is not None and not 0 <= value < _NO_LENGTH:
        raise NoNumber(text)
    return value


def each(ends: Sequence[int]) -> Shape:
    """Return the lengths of requests from their cumulative sums."""
    return tuple(stop - start for start, stop in pairwise((0, *ends)))


@dataclass(frozen=True, slots=True)
class Pages:
    """A pool of pages of keys, and the part of it that the requests use.

    width   pages that fit in a row of the block table
    valid   number of pages of each request that have keys
    is_flat a page is (tokens, heads * size), else (heads, tokens, size)
    is_nz   a page is (heads, size / 16, tokens, 16), the NZ layout of caches"""

    blocks: int
    block_size: int
    width: int
    valid: Shape
    is_flat: bool = True
    is_nz: bool = False

    @property
    def fit(self) -> bool:
        """Return whether the pool and each row of the block table are large enough."""
        return sum(self.valid) <= self.blocks and max(self.valid, default=0) <= self.width

    def hold(self, keys: Shape) -> bool:
        """Return whether each request has enough pages for its keys."""
        return len(self.valid) == len(keys) and all(
            count * self.block_size >= length
            for count, length in zip(self.valid, keys, strict=True)
        )

    def places(self) -> list[list[int]]:
        """Return the pages of a shuffled pool for each row of the block table.

        A row has its own pages in sequence; entries after them may be any page."""
        starts = (0, *cumulative_ends(self.valid))
        return [
            [start + i if i < count else 0 for i in range(self.width)]
            for start, count in zip(starts, self.valid, strict=False)
        ]


def pages_of(length: int, block_size: int) -> int:
    """Return the number of pages for a length."""
    return -(-length // block_size)


def paged_keys(
    case: Case, queries: Shape, pages: Pages, unnamed: Sequence[int]
) -> tuple[Shape, Shape]:
    """Return the keys of each request, and the number of pages of each.

    Lengths take precedence, then their mean, then the number of pages in use; `unnamed` is used if
    the row has none of them."""
    keys = runtime_numbers(case, "actual_seq_lengths_kv_values")
    valid = runtime_numbers(case, "block_table_valid_blocks")
    average = mean(case)
    if keys is None and average is not None:
        keys = equal_parts(round(average * len(queries)), len(queries))
    if keys is None and valid is not None:
        keys = tuple(count * pages.block_size for count in valid)
    keys = tuple(unnamed) if keys is None else keys
    return keys, valid or tuple(pages_of(length, pages.block_size) for length in keys)


def unknown_lengths(case: Case, table: int) -> str:
    """Return why the lengths of a paged cache are unknown; empty if a column has them.

    The block table is the input at `table`. Shapes bound the number of keys of a request but do not
    give it. A decode of 4,096 keys that is read as one page would be a case of 128 keys."""
    columns = ("actual_seq_lengths_kv_values", "avg_seq_len", "block_table_valid_blocks")
    if given(case, table) is None or any(case.attribute(RUNTIME_PREFIX + c) for c in columns):
        return ""
    return (
        "lengths unknown: the row has no key lengths for its requests in the paged cache; name "
        "them with `runtime: {kv_length: [...]}` in the campaign, or use operator_details.csv or "
        "`opmeter tree fia-backfill`"
    )


def named(case: Case, columns: Mapping[str, object]) -> dict[str, str]:
    """Return `Runtime ...` columns with the row's values, else these; omit those without any."""
    texts = {
        RUNTIME_PREFIX + name: case.attribute(RUNTIME_PREFIX + name) or _text(value)
        for name, value in columns.items()
    }
    return {name: text for name, text in texts.items() if text}


def _whole(text: str) -> int:
    try:
        value = parse_number(text)
    except ValueError as error:
        raise NoNumber(text) from error
    if not value.is_integer():
        raise NoNumber(text)
    return int(value)


def _text(value: object) -> str:
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Layouts of attention's tensors, letter by letter: B batch, T all tokens, S tokens of a request, N
# heads, D numbers of a head, H = N * D.
#
# `BNSD_NBSD` takes queries as BNSD and returns its output as NBSD.

# Layouts whose queries have no batch are adjacent, in the order in which they are tried for a row
# that names no layout.
LAYOUTS = ("TND", "TND_NTD", "BSH", "BNSD", "BSND", "BNSD_NBSD", "BSND_NBSD", "BNSD_BSND")
MLA_LAYOUTS = ("TND", "TND_NTD", "BSH", "BNSD_NBSD", "BSND_NBSD", "BNSD", "BSND")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a batch: its index, and the position of its queries among all tokens."""

    index: int
    start: int
    queries: int
    keys: int


def requests_of(queries: Shape, keys: Shape) -> Iterator[Request]:
    """Yield requests with these numbers of queries and keys, their queries in sequence."""
    starts = (0, *cumulative_ends(queries))
    for index, (some, held) in enumerate(zip(queries, keys, strict=True)):
        yield Request(index, starts[index], some, held)


def letters_in(layout: str) -> str:
    """Return the letters of queries, and of keys without pages."""
    return layout.partition("_")[0]


def letters_out(layout: str) -> str:
    """Return the letters of the output."""
    first, _, last = layout.partition("_")
    return last or first


def sizes_by_letter(letters: str, shape: Shape) -> dict[str, int] | None:
    """Return the size of each letter in a shape; None if the shape has other dimensions."""
    if len(shape) != len(letters) or not all(shape):
        return None
    return dict(zip(letters, shape, strict=True))


def shape_of(letters: str, sizes: dict[str, int]) -> Shape:
    """Return the shape with these sizes; H is N * D."""
    known = {**sizes, "H": sizes["N"] * sizes["D"]}
    return tuple(known[letter] for letter in letters)


def part_of(tensor: Any, letters: str, request: Request, heads: int) -> Any:
    """Return the request's queries as (heads, tokens, size): a view to read or write."""
    if letters == "BSH":
        tensor, letters = tensor.unflatten(-1, (heads, -1)), "BSND"
    if "T" in letters:
        part = tensor.narrow(letters.index("T"), request.start, request.queries)
    else:
        part = tensor.select(letters.index("B"), request.index)
        letters = letters.replace("B", "")
        part = part.narrow(letters.index("S"), 0, request.queries)
    tokens = "T" if "T" in letters else "S"
    return part.permute(*(letters.index(letter) for letter in ("N", tokens, "D")))
