"""What the operators of paged key-value caches share: places in them, and how they are written.

A cache is (blocks, block size, heads, head size); its places are numbered block by block.
"""

from typing import Any

from collector.case import Case
from collector.ops.slots import Shape, input_shape
from collector.ops.spec import TensorMaker


def capacity(cache: Shape) -> int:
    """Places of a cache."""
    return cache[0] * cache[1]


def make_places(make: TensorMaker, count: int, capacity: int, dtype: str) -> Any:
    """Places all over a cache in random order, none twice, at a cost that its size does not
    change: one somewhere in each of `count` equal parts."""
    part = capacity // count
    parts = make.permutation(count, "INT64")
    within = make.integers((count,), "INT64", 0, part)
    return (parts * part + within).to(make.dtype(dtype))


def write(cache: Any, places: Any, rows: Any) -> Any:
    """The cache, with these rows at these places."""
    cache.flatten(0, 1).index_put_((places,), rows)
    return cache


def is_cache_of(case: Case, cache: int, tokens: int, places: int) -> bool:
    """Whether the cache has heads like those of the tokens (T,N,D), and a place for each."""
    held, rows = input_shape(case, cache), input_shape(case, tokens)
    return (
        len(held) == 4
        and len(rows) == 3
        and held[2:] == rows[1:]
        and input_shape(case, places) == rows[:1]
        and rows[0] <= capacity(held)
    )
