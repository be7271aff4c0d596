"""INT4 weights of experts beside INT8 tokens (W4A8), with a scale for each group of 256 rows.

torch holds eight numbers in an INT32, the first in the lowest bits. The kernel takes tokens apart
into halves of four bits, and wants as bias what that adds: 8 times the sum of weights by scales.
Limits are those that aclnnGroupedMatmulV5 documents for A2 and A3.
"""

from typing import Any

from collector.case import Case, Slot
from collector.ops.catalog.matmul._grouped import GroupedProduct
from collector.ops.dtypes import spelling
from collector.ops.parts.quant_scale import PACKED, decoded, packed_scale
from collector.ops.slots import Shape, given
from collector.ops.spec import TensorMaker

GROUP_ROWS = 256
_MOST_ROWS = 18432
COLUMNS = 8  # in an INT32


def is_nibbles(case: Case) -> bool:
    """Whether the weights have four bits."""
    return spelling(given(case, 1)) == "INT4"


def nibbles_fit(sizes: GroupedProduct) -> bool:
    """Whether the kernel takes such weights."""
    return (
        not sizes.transposes_weight
        and 0 < sizes.k <= _MOST_ROWS
        and not sizes.k % GROUP_ROWS
        and not sizes.n % COLUMNS
    )


def scale_shape(sizes: GroupedProduct) -> Shape:
    """A scale for each group of rows and each column."""
    return sizes.experts, sizes.k // GROUP_ROWS, sizes.n


def dtypes_fit(bias: str, scale: str, per_token: str, out: str) -> bool:
    """The one combination that is documented without an offset."""
    is_out = out in ("DT_BF16", "FLOAT16")
    return is_out and (bias, per_token) == ("FLOAT", "FLOAT") and scale in PACKED


def nibble_tensors(
    weight: Slot, sizes: GroupedProduct, make: TensorMaker
) -> tuple[Any, dict[str, Any]]:
    """The weights as INT32 in the slot's format, with their scale and bias."""
    torch = make.torch
    pairs = make.integers((sizes.experts, sizes.k, sizes.n // 2), "INT8", -128, 128)
    scale = packed_scale(scale_shape(sizes), make)
    both = zip(pairs, scale, strict=True)
    bias = torch.stack([8 * _scaled(torch, pair, one).sum(0) for pair, one in both])
    packed = make.stored(pairs, weight.format).view(make.dtype("INT32"))
    return packed, {"scale": scale, "bias": bias}


def multiply_nibbles(
    torch: Any, tokens: Any, weight: Any, place: Any, per_token: Any, *, scale: Any, bias: Any
) -> None:
    """The product of one expert; the bias is the kernel's own."""
    total = tokens.float() @ _scaled(torch, weight.view(torch.int8), scale)
    place.copy_(total.mul_(per_token.unsqueeze(-1)))


def _scaled(torch: Any, pairs: Any, scale: Any) -> Any:
    """(K,N) numbers of (K,N/2) bytes, times their scales: in FLOAT, which every device shifts."""
    both = pairs.float()
    high = (both / 16).floor()
    low = both - 16 * high
    numbers = torch.stack((low - 16 * (low > 7), high), -1).flatten(-2)
    groups = numbers.unflatten(0, (-1, GROUP_ROWS))
    return (groups * decoded(torch, scale).unsqueeze(1)).flatten(0, 1)
