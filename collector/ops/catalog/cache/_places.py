"""Positions in paged key-value caches and writes to them, shared by the operators of caches.

A cache is (blocks, block size, heads, head size); its positions are numbered block by block.
"""

from typing import Any

from collector.model.case import Shape


def capacity(cache: Shape) -> int:
    """Return the number of positions of a cache."""
    return cache[0] * cache[1]


def write(cache: Any, places: Any, rows: Any) -> Any:
    """Write these rows at these positions and return the cache."""
    cache.flatten(0, 1).index_put_((places,), rows)
    return cache


def write_both(
    torch: Any, key: Any, value: Any, key_cache: Any, value_cache: Any, places: Any
) -> tuple[Any, Any]:
    """Write the key and the value of each token at its position and return both caches."""
    return write(key_cache, places, key), write(value_cache, places, value)
