"""Pages of keys: a block table of a shuffled pool, and what a request's pages hold.

Pages are all over the pool, as after some time of serving: pages in order would be read faster.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.attention._lengths import Pages, pages_of
from collector.ops.slots import Shape, input_shape
from collector.ops.spec import TensorMaker

_NZ_COLUMNS = 16


def by_token(case: Case, position: int) -> Shape:
    """The shape of an input; (blocks,heads,size/16,tokens,16) as (blocks,heads,tokens,size)."""
    shape = input_shape(case, position)
    if len(shape) != 5 or shape[4] != _NZ_COLUMNS:
        return shape
    blocks, heads, parts, tokens, columns = shape
    return blocks, heads, tokens, parts * columns


def make_table(make: TensorMaker, pages: Pages) -> Any:
    """A block table (requests, width): each page belongs to one request, in seeded order."""
    pool = make.permutation(pages.blocks, "INT32")
    places = make.tensor(pages.places(), "INT64")
    return pool.index_select(0, places.view(-1)).view(places.shape)


def held_keys(cache: Any, table: Any, pages: Pages, request: int, keys: int, heads: int) -> Any:
    """The keys of one request out of the cache, as (heads, keys, size)."""
    count = pages_of(keys, pages.block_size)
    held = cache.index_select(0, table[request, :count])
    if pages.is_nz:
        held = held.transpose(2, 3).flatten(3)
    if pages.is_flat:
        by_heads = held.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)
    else:
        by_heads = held.transpose(0, 1).flatten(1, 2)
    return by_heads[:, :keys]
