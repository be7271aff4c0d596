"""Attention in plain torch, in blocks of rows and heads: scores, forward pass, layouts.

Queries have the shape (batch * key heads, group, sequence, head size). A group is the heads that
share keys, so every product is one batched matrix product. Products use the tensors' dtype, the
softmax uses float32.
"""

from typing import Any

from collector.model.case import Case, Shape
from collector.ops.catalog.attention._lengths import Pages, pages_of
from collector.ops.catalog.attention._sizes import MASK_SIDE, Attention, Block
from collector.ops.slots import input_shape
from collector.ops.spec import TensorMaker


def make_mask(make: TensorMaker, dtype: str = "BOOL") -> Any:
    """Return the compressed causal mask: true above the diagonal, where keys are hidden."""
    return make.full((MASK_SIDE, MASK_SIDE), dtype, 1).triu_(1)


def make_mask_of(make: TensorMaker, sizes: Attention) -> Any:
    """Return the mask of a call that has one, compressed or whole: true where keys are hidden."""
    if not sizes.has_whole_mask:
        return make_mask(make)
    whole = make.full((sizes.queries, sizes.keys), "BOOL", int(sizes.causal))
    return whole.triu_(1)


def split(tensor: Any, sizes: Attention) -> Any:
    """Return a query or key tensor as (batch * key heads, group, sequence, head size)."""
    if tensor.dim() == 3:
        tensor = tensor.unflatten(2, (-1, sizes.head_size))
    return _grouped(tensor.permute(sizes.to_heads), sizes)


def join(grouped: Any, sizes: Attention, like: Any) -> Any:
    """Return the inverse of `split`, in the shape and dtype of `like`."""
    by_heads = grouped.reshape(sizes.batch, -1, *grouped.shape[2:])
    back = [sizes.to_heads.index(axis) for axis in range(4)]
    return by_heads.permute(back).reshape(like.shape).to(like.dtype)


def split_statistics(tensor: Any, sizes: Attention) -> Any:
    """Return a softmax maximum or sum in the layout of split queries, one number per row."""
    return _grouped(tensor, sizes)[..., :1]


def block_rows(tensor: Any, block: Block) -> Any:
    """Return the block's part of a query-like tensor: (heads, group * rows, ...)."""
    return tensor[block.heads, :, block.start : block.stop].flatten(1, 2)


def put_rows(tensor: Any, block: Block, rows: Any) -> None:
    """Write rows to the part that `block_rows` reads."""
    part = tensor[block.heads, :, block.start : block.stop]
    part.copy_(rows.view(part.shape))


def keys_of(tensor: Any, block: Block) -> Any:
    """Return the block's part of a key-like tensor: (heads, keys, head size)."""
    return tensor[block.heads, 0, : block.keys]


def scores(torch: Any, query: Any, key: Any, mask: Any, sizes: Attention, block: Block) -> Any:
    """Return scaled scores in float32, (heads, group * rows, keys), -inf where hidden."""
    product = torch.bmm(block_rows(query, block), keys_of(key, block).transpose(1, 2))
    scaled = product.float().mul_(sizes.scale)
    if mask is not None and not sizes.causal:
        rows = block.stop - block.start
        hidden = mask[block.start : block.stop, : block.keys]
        scaled.unflatten(1, (-1, rows)).masked_fill_(hidden, float("-inf"))
    elif mask is not None:
        rows = block.stop - block.start
        diagonal = scaled.unflatten(1, (-1, rows))[..., block.keys - rows :]
        diagonal.masked_fill_(mask[:rows, :rows], float("-inf"))
    if sizes.before is not None:
        rows, keys = block.stop - block.start, torch.arange(block.keys, device=scaled.device)
        is_early = keys < keys[block.keys - rows :].unsqueeze(1) - sizes.before
        scaled.unflatten(1, (-1, rows)).masked_fill_(is_early, float("-inf"))
    return scaled


def attend(
    torch: Any, query: Any, key: Any, value: Any, mask: Any, sizes: Attention
) -> tuple[Any, Any, Any]:
    """Return the attention, and the maximum and sum of the softmax, of tensors from `split`.

    The head size of values may differ from that of keys."""
    out = query.new_empty((*query.shape[:3], value.shape[-1]))
    peaks = torch.empty(*query.shape[:3], 1, dtype=torch.float32, device=query.device)
    sums = torch.empty_like(peaks)
    for block in sizes.blocks():
        weights = scores(torch, query, key, mask, sizes, block)
        peak = weights.amax(-1, keepdim=True)
        total = weights.sub_(peak).exp_().sum(-1, keepdim=True)
        rows = torch.bmm(weights.to(value.dtype), keys_of(value, block)).div_(total)
        for tensor, part in ((out, rows), (peaks, peak), (sums, total)):
            put_rows(tensor, block, part)
    return out, peaks, sums


def forward(torch: Any, query: Any, key: Any, value: Any, mask: Any, sizes: Attention) -> Any:
    """Return the maximum and sum of the softmax, each repeated eight times, and the attention."""
    q, k, v = (split(tensor, sizes) for tensor in (query, key, value))
    out, peaks, sums = attend(torch, q, k, v, mask, sizes)
    statistics = (t.view(*_rows_shape(sizes), 1).expand(-1, -1, -1, 8) for t in (peaks, sums))
    maximum, total = (tensor.contiguous() for tensor in statistics)
    return maximum, total, join(out, sizes, query)


def _grouped(by_heads: Any, sizes: Attention) -> Any:
    """Reshape (batch, heads, ...) to (batch * key heads, group, ...)."""
    return by_heads.reshape(sizes.batch * sizes.kv_heads, -1, *by_heads.shape[2:])


def _rows_shape(sizes: Attention) -> tuple[int, int, int]:
    return sizes.batch, sizes.heads, sizes.queries


# Pages of keys: a block table of a shuffled pool, and the keys in the pages of a request.
#
# Pages are spread over the whole pool, as after some time of serving: pages in order would be read
# faster.
_NZ_COLUMNS = 16


def shape_by_token(case: Case, position: int) -> Shape:
    """Return an input's shape; (blocks,heads,size/16,tokens,16) as (blocks,heads,tokens,size)."""
    shape = input_shape(case, position)
    if len(shape) != 5 or shape[4] != _NZ_COLUMNS:
        return shape
    blocks, heads, parts, tokens, columns = shape
    return blocks, heads, tokens, parts * columns


def make_block_table(make: TensorMaker, pages: Pages) -> Any:
    """Return a block table (requests, width): each page belongs to one request, in seeded order."""
    pool = make.permutation(pages.blocks, "INT32")
    places = make.tensor(pages.places(), "INT64")
    return pool.index_select(0, places.view(-1)).view(places.shape)


def held_keys(cache: Any, table: Any, pages: Pages, request: int, keys: int, heads: int) -> Any:
    """Return the keys of one request from the cache, as (heads, keys, size)."""
    count = pages_of(keys, pages.block_size)
    held = cache.index_select(0, table[request, :count])
    if pages.is_nz:
        held = held.transpose(2, 3).flatten(3)
    if pages.is_flat:
        by_heads = held.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(0, 1)
    else:
        by_heads = held.transpose(0, 1).flatten(1, 2)
    return by_heads[:, :keys]
