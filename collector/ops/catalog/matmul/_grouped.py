"""The shapes of products by expert: tokens (T, K), and one weight for each of E experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collector.case import Case, Slot
from collector.ops.slots import Shape, input_shape, output_shape
from collector.ops.spec import TensorMaker, dense_bytes

_LAST_DIMENSION = 65536


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """The sizes of one call, and whether the weights lie transposed in memory, (E, N, K)."""

    tokens: int
    k: int
    n: int
    experts: int
    transposes_weight: bool

    @property
    def weight(self) -> Shape:
        """The weights as they lie in memory."""
        sides = (self.n, self.k) if self.transposes_weight else (self.k, self.n)
        return (self.experts, *sides)

    @property
    def flops(self) -> int:
        """A product and a sum for each pair of numbers that meet."""
        return 2 * self.tokens * self.k * self.n


def read_grouped_product(case: Case, width: Callable[[int], int]) -> GroupedProduct | None:
    """The sizes that fit inputs 1 and 2 and the first output, whose last dimension is `width` of
    the weights' columns; None where they do not, or are larger than the kernel takes."""
    x, weight, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    if len(x) != 2 or len(weight) != 3 or not weight[0]:
        return None
    if max(x[1], weight[2]) >= _LAST_DIMENSION:
        return None
    tokens, k = x
    for transposed in (False, True):
        inner, n = weight[:0:-1] if transposed else weight[1:]
        if inner == k and (out is None or out == (tokens, width(n))):
            return GroupedProduct(tokens, k, n, weight[0], transposed)
    return None


def stored_weight(
    slot: Slot,
    sizes: GroupedProduct | None,
    make: TensorMaker,
    numbers: Callable[[Shape, Slot, TensorMaker], Any],
) -> Any:
    """The weights, (E, K, N), in the slot's format."""
    if sizes is None:
        return numbers(slot.shape or (), slot, make)
    tensor = make.stored(numbers(sizes.weight, slot, make), slot.format)
    return tensor.transpose(1, 2) if sizes.transposes_weight else tensor


def grouped_traffic(case: Case, sizes: GroupedProduct | None, optional: frozenset[int]) -> int:
    """Bytes of one launch: the weights of experts that have no token are not read."""
    whole = dense_bytes(case, absent=optional)
    if sizes is None:
        return whole
    idle = max(0, sizes.experts - sizes.tokens)
    return whole - (case.inputs or ())[1].size_bytes // sizes.experts * idle
