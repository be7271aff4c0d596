"""Heads times tokens: (heads, tokens, K) @ (heads, K, N) -> (tokens, heads, N), as attention with
absorbed weights computes it, in one kernel without a copy for the transpose."""

from dataclasses import dataclass
from typing import Any

from collector.case import Case
from collector.ops.slots import agrees, input_shape


@dataclass(frozen=True, slots=True)
class HeadsProduct:
    """The sizes of one call, and whether the tokens come before the heads in the first input."""

    heads: int
    tokens: int
    k: int
    n: int
    tokens_first: bool

    @property
    def flops(self) -> int:
        """A product and a sum for each pair of numbers that meet."""
        return 2 * self.heads * self.tokens * self.k * self.n


def read_heads_product(case: Case, orders: tuple[bool, ...]) -> HeadsProduct | None:
    """The sizes, trying these values of `tokens_first` in turn; None where none fits."""
    x, weight = input_shape(case, 0), input_shape(case, 1)
    if len(x) != 3 or len(weight) != 3:
        return None
    heads, k, n = weight
    for tokens_first in orders:
        tokens, batch = x[:2] if tokens_first else x[1::-1]
        if (batch, x[2]) == (heads, k) and agrees(case, 0, (tokens, heads, n)):
            return HeadsProduct(heads, tokens, k, n, tokens_first)
    return None


def multiply_heads(torch: Any, x: Any, weight: Any, out: Any) -> Any:
    """`x` by heads, tokens and K; writes into (tokens, heads, N)."""
    torch.bmm(x, weight, out=out.transpose(0, 1))
    return out
