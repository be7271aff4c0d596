"""Shapes of products by expert: tokens (T, K), and one weight for each of E experts.

After an exchange between ranks, T is the buffer size for any routing, and few of its rows are used.
If the column `Runtime group_list_values` has the end of each expert's rows, only these rows are
computed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from collector.model.case import Case, Shape
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.parts.tensors import equal_parts
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Constraint, dense_bytes

GROUP_ENDS = RUNTIME_PREFIX + "group_list_values"
_ENDS = re.compile(r"[0-9]{1,9}(,[0-9]{1,9})*")
_LAST_DIMENSION = 65536


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


def read_grouped_product(case: Case, width: Callable[[int], int]) -> GroupedProduct | None:
    """Return the sizes that fit inputs 1 and 2 and the first output; None if none fit.

    The last dimension of the output is `width` of the weights' columns. None also if the sizes
    exceed the kernel's limits."""
    x, weight, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    if len(x) != 2 or len(weight) != 3 or not weight[0]:
        return None
    if max(x[1], weight[2]) >= _LAST_DIMENSION:
        return None
    tokens, k = x
    for transposed in (False, True):
        inner, n = weight[:0:-1] if transposed else weight[1:]
        if inner == k and (out is None or out == (tokens, width(n))):
            counts = _recorded_counts(case, weight[0], tokens) or equal_parts(tokens, weight[0])
            return GroupedProduct(tokens, k, n, weight[0], transposed, counts)
    return None


def written_rows(sizes: GroupedProduct) -> int | None:
    """Return the number of rows of the outputs that a launch writes; None if all are."""
    return sizes.used if sizes.used < sizes.tokens else None


def groups_fit(read: Callable[[Case], GroupedProduct | None]) -> Constraint:
    """Require that the recorded group ends fit the tokens; `read` returns the sizes of a row."""

    def holds(case: Case) -> bool:
        sizes = rules.accepted(read(case))
        counts = _recorded_counts(case, sizes.experts, sizes.tokens)
        return case.attribute(GROUP_ENDS) is None or counts is not None

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
