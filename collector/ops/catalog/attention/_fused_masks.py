"""Masks of fused attention: the compressed causal one, which is the same for all lengths, and full
ones, which have every pair of a query and a key and in which nothing is left out."""

from typing import Any

from collector.case import Slot
from collector.ops.catalog.attention._blocks import make_mask
from collector.ops.catalog.attention._fused import (
    ALL_OF_A_MASK,
    EVERYTHING,
    RIGHT_DOWN_CAUSAL,
    FusedCall,
)
from collector.ops.catalog.attention._layouts import Request
from collector.ops.catalog.attention._sizes import MASK_SIDE
from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker


def sparse_modes(mask: Shape | None, pairs: tuple[int, int, int] | None) -> tuple[int, ...]:
    """The modes that a mask fits, the likeliest first. `pairs` are requests, queries and keys of
    each, None where the call takes no full mask."""
    if mask is None:
        return (EVERYTHING,)
    ones = (1,) * (len(mask) - 2)
    is_causal = len(mask) in (2, 3, 4) and mask == ones + (MASK_SIDE, MASK_SIDE)
    is_full = pairs is not None and _is_full(mask, *pairs)
    causal = (RIGHT_DOWN_CAUSAL,) if is_causal else ()
    return (*causal, EVERYTHING, ALL_OF_A_MASK) if is_full else causal


def mask_of(slot: Slot | None, call: FusedCall, make: TensorMaker) -> Any:
    """The mask of a row. A full one is causal, aligned to the last key: what it hides is computed
    all the same, and the first key is seen by all."""
    if slot is None:
        return None
    shape = slot.shape or ()
    if call.sparse_mode == RIGHT_DOWN_CAUSAL:
        return make_mask(make, slot.dtype).view(shape)
    return make.full(shape, slot.dtype, 1).triu_(1 + max(0, shape[-1] - shape[-2]))


def hidden_of(torch: Any, mask: Any, request: Request, call: FusedCall) -> Any:
    """What the queries of a request do not see, (queries, keys), or the compressed mask."""
    if mask is None:
        return None
    hidden = mask.view(torch.bool)
    if call.sparse_mode == RIGHT_DOWN_CAUSAL:
        return hidden.view(hidden.shape[-2:])
    if hidden.dim() == 2 and max(call.queries) == 1:
        return hidden[request.index % len(hidden)].unsqueeze(0)
    while hidden.dim() > 2:
        hidden = hidden[request.index % len(hidden)]
    return hidden


def _is_full(mask: Shape, batch: int, queries: int, keys: int) -> bool:
    """Whether there is a number for every pair; sequences may be rounded up."""
    if len(mask) == 2 and queries == 1:
        return mask[0] in (1, batch) and _is_rounded(mask[1], keys)
    if mask[:-2] not in ((), (1,), (1, 1), (batch, 1)) or len(mask) < 2:
        return False
    return _is_rounded(mask[-2], queries) and _is_rounded(mask[-1], keys)


def _is_rounded(size: int, length: int) -> bool:
    return size in (length, -(-length // 16) * 16, -(-length // 32) * 32)
