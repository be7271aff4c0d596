"""Shapes of products by expert: tokens (T, K), and one weight for each of E experts.

After an exchange between ranks, T is the buffer size for any routing, and few of its rows are used.
If the column `Runtime group_list_values` has the end of each expert's rows, only these rows are
computed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from collector.model.case import Case, Shape
from collector.model.vocabulary import GROUP_ENDS
from collector.ops.parts import int8, narrow
from collector.ops.parts.tensors import equal_parts
from collector.ops.signature import parse_signature
from collector.ops.slots import given, spelling
from collector.ops.spec import Constraint, TensorMaker, dense_bytes

_ENDS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
# the conditions of any weight, and of INT4 weights with scales (E,*groups,N)
WEIGHT = "k < 65536, transposed or n < 65536, experts > 0"
NIBBLES = "n < 65536, n % 8 == 0, groups_rank < 2, groups > 0, k % groups == 0"


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """The sizes of one call.

    Also whether the weights are transposed in memory, (E, N, K), and the number of tokens of each
    expert, starting at the first token."""

    tokens: int
    k: int
    n: int
    experts: int
    transposes_weight: bool
    counts: Shape

    @property
    def used(self) -> int:
        """Return the number of tokens that are computed."""
        return sum(self.counts)

    @property
    def weight(self) -> Shape:
        """Return the shape of the weights in memory."""
        sides = (self.n, self.k) if self.transposes_weight else (self.k, self.n)
        return (self.experts, *sides)

    @property
    def flops(self) -> int:
        """Return the operations: a product and a sum for each pair of multiplied numbers."""
        return 2 * self.used * self.k * self.n


def grouped_by(signature: str) -> Callable[[Case], GroupedProduct]:
    """Return a function that reads a product by the signature of its operator, which names t, k, n
    and experts. FLOAT4 weights are (E,N,K) only."""
    read = parse_signature(signature)
    weight = read.slots.index("weight")

    def product(case: Case) -> GroupedProduct:
        sizes = read.sizes(case)
        t, experts = sizes["t"], sizes["experts"]
        counts = _recorded_counts(case, experts, t) or equal_parts(t, experts)
        transposed = bool(sizes.get("transposed", narrow.is_paired(given(case, weight))))
        return GroupedProduct(t, sizes["k"], sizes["n"], experts, transposed, counts)

    return product


def written_rows(sizes: GroupedProduct) -> int | None:
    """Return the number of rows of the outputs that a launch writes; None if all are."""
    return sizes.used if sizes.used < sizes.tokens else None


def groups_fit(read: Callable[[Case], GroupedProduct]) -> Constraint:
    """Require that the recorded group ends fit the tokens; `read` returns the sizes of a row."""

    def holds(case: Case) -> bool:
        if case.attribute(GROUP_ENDS) is None:
            return True
        sizes = read(case)
        return _recorded_counts(case, sizes.experts, sizes.tokens) is not None

    return Constraint(
        f"{GROUP_ENDS}: expected cumulative sums, one for each expert, up to T", holds
    )


def _recorded_counts(case: Case, experts: int, tokens: int) -> Shape | None:
    text = case.attribute(GROUP_ENDS)
    if text is None or not _ENDS.fullmatch(text):
        return None
    ends = (0, *map(int, text.split(",")))
    counts = tuple(after - before for before, after in pairwise(ends))
    is_one_each = len(counts) == experts and min(counts) >= 0
    return counts if is_one_each and 0 < ends[-1] <= tokens else None


def grouped_traffic(case: Case, sizes: GroupedProduct, optional: frozenset[int]) -> int:
    """Return the bytes of one launch.

    The weights of experts without tokens are not read. Tokens without an expert are neither read
    nor written."""
    whole = dense_bytes(case, optional)
    if not sizes.tokens:
        return whole
    inputs, outputs = case.inputs or (), case.outputs or ()
    idle = sum(count == 0 for count in sizes.counts)
    by_token = [slot for slot in (*inputs, *outputs) if (slot.shape or ())[:1] == (sizes.tokens,)]
    row_bytes = sum(slot.size_bytes for slot in by_token) // sizes.tokens
    weights_bytes = inputs[1].size_bytes // sizes.experts * idle
    return whole - weights_bytes - row_bytes * (sizes.tokens - sizes.used)


# INT4 weights of experts: eight numbers in an INT32 of torch, the first in the lowest bits.
#
# Their scales are one for each column, or for each column of G equal groups of rows. With INT8
# tokens (W4A8) the kernel splits tokens into halves of four bits, and requires as bias the
# resulting term: 8 times the sum of weights by scales. aclnnGroupedMatmulV5 documents groups of 256
# rows for A2 and A3; vLLM-Ascend serves scales of columns, as (E,N) and (E,1,N) (its method
# W4A8_DYNAMIC). With 16-bit tokens (W4A16) groups may have any size.
COLUMNS = 8  # in an INT32


def is_nibbles(case: Case, position: int = 1) -> bool:
    """Return whether the weights have four bits."""
    return spelling(given(case, position)) == "INT4"


def nibbles(sizes: GroupedProduct, make: TensorMaker) -> Any:
    """Return weights of all values of four bits, (E,K,N/2) bytes."""
    return make.integers((sizes.experts, sizes.k, sizes.n // 2), "INT8", -128, 128)


def packed(pairs: Any, format: str, make: TensorMaker) -> Any:
    """Return them as INT32 in a slot's format, which the functions require."""
    return make.stored(pairs, format).view(make.dtype("INT32"))


def split_options(pairs: Any, scale_shape: Shape, make: TensorMaker) -> dict[str, Any]:
    """Return the packed scale, and the bias that the split of tokens requires."""
    scale = int8.packed_scale(scale_shape, make)
    both = zip(pairs, int8.scale_values(make.torch, scale), strict=True)
    bias = [8 * _by_scale(make.torch, weight, own).sum(0) for weight, own in both]
    return {"scale": scale, "bias": make.torch.stack(bias)}


def multiplied(torch: Any, tokens: Any, weight: Any, scale: Any) -> Any:
    """Return the FLOAT product of one expert; only the kernel needs the bias of the split."""
    return tokens.float() @ _by_scale(torch, weight, int8.scale_values(torch, scale))


def dequantised_expert(torch: Any, weight: Any, scale: Any, offset: Any) -> Any:
    """Return one expert's INT4 weight (K,N) in the scale's dtype: (weight + offset) * scale."""
    return _by_scale(torch, weight, scale, offset).to(scale.dtype)


def _by_scale(torch: Any, weight: Any, scale: Any, offset: Any = None) -> Any:
    """Return FLOAT (K,N) of INT32 (K,N/8), by a scale (N) or (G,N), after a sum with an offset.

    The bytes are split in FLOAT, which works on every device."""
    both = weight.view(torch.int8).float()
    high = (both / 16).floor()
    low = both - 16 * high
    numbers = torch.stack((low - 16 * (low > 7), high), -1).flatten(-2)
    groups = numbers.unflatten(0, (scale.numel() // scale.shape[-1], -1))
    if offset is not None:
        groups = groups.add_(offset.view(-1, 1, scale.shape[-1]))
    return (groups * scale.view(-1, 1, scale.shape[-1])).flatten(0, 1)
