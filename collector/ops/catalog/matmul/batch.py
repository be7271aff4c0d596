"""Products of matrices in batches, and by heads."""

from dataclasses import dataclass
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.catalog.matmul._product import (
    OUTPUT_FITS,
    Product,
    group_by_weight,
    is_wide,
    read_product,
    wide_output,
)
from collector.ops.parts import like
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import (
    Call,
    Constraint,
    Need,
    NpuCall,
    OpSpec,
    TensorMaker,
    build_from_slots,
)

# Products by heads: (heads, tokens, K) @ (heads, K, N) -> (tokens, heads, N), as in attention with
# absorbed weights, in one kernel without a copy for the transpose.


@dataclass(frozen=True, slots=True)
class HeadsProduct:
    """The sizes of one call, and whether the tokens precede the heads in the first input."""

    heads: int
    tokens: int
    k: int
    n: int
    tokens_first: bool

    @property
    def output(self) -> Shape:
        return (self.tokens, self.heads, self.n)

    @property
    def flops(self) -> int:
        """Return the operations: a product and a sum for each pair of multiplied numbers."""
        return 2 * self.heads * self.tokens * self.k * self.n


def read_heads_product(case: Case, orders: tuple[bool, ...]) -> HeadsProduct | None:
    """Return the sizes, for the first of these values of `tokens_first` that fits, or None."""
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
    """Multiply `x` (heads, tokens, K) by a weight and write to (tokens, heads, N)."""
    torch.bmm(x, weight, out=out.transpose(0, 1))
    return out


_BIAS, _OFFSET = 2, 3
_OPTIONAL = frozenset({_BIAS, _OFFSET})


def _product(case: Case) -> Product | None:
    """Return the product: batches are first read as NN, one matrix as NT, a linear layer's."""
    batched = len(input_shape(case, 0)) > 2
    return read_product(case, ("NN", "NT", "TN", "TT") if batched else ("NT", "NN", "TN", "TT"))


def _build(case: Case, make: TensorMaker) -> Call:
    a, b = (like.normal(slot, make) for slot in (case.inputs or ())[:2])
    wide = wide_output(case, make, a, "aten::bmm.dtype")
    bmm = {"bmm": make.torch.bmm} if wide else {}
    return Call(*rules.accepted(_product(case)).turned(a, b), **bmm, **wide)


def _reference(torch: Any, a: Any, b: Any, *, bmm: Any = None, out_dtype: Any = None) -> Any:
    if out_dtype in (None, a.dtype):
        return torch.matmul(a, b)
    if a.is_cuda:
        return bmm(a, b, out_dtype=out_dtype)
    return torch.matmul(a.to(out_dtype), b.to(out_dtype))


def _launch(matmul: Any, a: Any, b: Any, *, bmm: Any = None, out_dtype: Any = None) -> Any:
    """Launch `torch.matmul`, or for another output dtype the `bmm` that it launches."""
    return matmul(a, b) if bmm is None else bmm(a, b, out_dtype=out_dtype)


def _is_one_batch(case: Case) -> bool:
    a, b = input_shape(case, 0), input_shape(case, 1)
    return len(a) == len(b) == 3 and a[0] == b[0]


# Products of matrices in batches; the runtime chooses the kernel.
#
# For matrices without a batch, which some tables have, NPUs launch a kernel of MatMulV2's family,
# and the measurement is stored there.
BATCH_MAT_MUL_V2 = OpSpec(
    kernel="BatchMatMulV2",
    twins=("BatchMatMulV3", "BatchMatMulNd", "BatchMatMul"),
    call="torch.matmul",
    slots=("a", "b", "bias", "offset"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(_product),
    group=group_by_weight,
    npu=NpuCall(run=_launch),
    constraints=(
        rules.reads(
            "expected two batches of matrices that multiply to the output as NN, NT, TN or TT",
            _product,
        ),
        rules.floating((0, 1)),
        rules.one_dtype((0, 1), ()),
        OUTPUT_FITS,
        Constraint(
            "FLOAT output of 16-bit products: expected (B,M,K) and as many (K,N)",
            lambda case: not is_wide(case) or _is_one_batch(case),
        ),
        rules.absent("a bias or an offset cannot be replayed", _BIAS, _OFFSET),
    ),
    lookups=looked_up("aten.bmm.default"),
)


def _heads_sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (True,))


def _heads_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the operands, and the memory of the output, which the caller provides."""
    x, weight = case.inputs or ()
    out = make.empty(rules.accepted(_heads_sizes(case)).output, x.dtype)
    return Call(like.normal(x, make), like.normal(weight, make), out)


def _heads_build(case: Case, make: TensorMaker) -> Call:
    x, weight, out = _heads_build_for_npu(case, make).args
    return Call(x.transpose(0, 1), weight, out)


def _heads_launch(multiply: Any, x: Any, weight: Any, out: Any) -> Any:
    multiply(x, weight, out)
    return out


# vLLM-Ascend's own product by heads, tokens first on both sides.
BATCH_MATMUL_TRANSPOSE_0 = OpSpec(
    kernel="batch_matmul_transpose_0",
    call="torch.ops._C_ascend.batch_matmul_transpose",
    slots=("x", "weight"),
    reference=multiply_heads,
    build=_heads_build,
    flops=flops_by(_heads_sizes),
    group=group_by_weight,
    npu=NpuCall(
        run=_heads_launch,
        build=_heads_build_for_npu,
        needs=frozenset({Need.VLLM_ASCEND}),
    ),
    constraints=(
        rules.reads(
            "expected (tokens,heads,K), (heads,K,N), and an output (tokens,heads,N)", _heads_sizes
        ),
        rules.inputs_are(("DT_BF16", "FLOAT16"), (0, 1)),
        rules.one_dtype((0, 1)),
    ),
)


_SCALE = 3
_LIMIT = 65536
_HEADS_FIRST, _TOKENS_FIRST = (0, 1, 2), (1, 0, 2)


def _transpose_sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (False, True))


def _is_legal(case: Case) -> bool:
    """Return whether the sizes fit aclnnTransposeBatchMatMul's documentation for A2 and A3."""
    sizes = rules.accepted(_transpose_sizes(case))
    if sizes.k % 128 or sizes.n % 128:
        return False
    inner = sizes.heads * sizes.k if sizes.tokens_first else sizes.k
    return min(sizes.k, sizes.n, sizes.heads) > 0 and max(inner, sizes.n, sizes.heads) < _LIMIT


def _transpose_build(case: Case, make: TensorMaker) -> Call:
    sizes, (x, weight) = (
        rules.accepted(_transpose_sizes(case)),
        build_from_slots(case, make).args[:2],
    )
    out = make.empty(sizes.output, (case.inputs or ())[0].dtype)
    return Call(x.transpose(0, 1) if sizes.tokens_first else x, weight, out)


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    order = _TOKENS_FIRST if rules.accepted(_transpose_sizes(case)).tokens_first else _HEADS_FIRST
    perms = {"perm_x1": order, "perm_x2": _HEADS_FIRST, "perm_y": _TOKENS_FIRST}
    return Call(*build_from_slots(case, make).args[:2], **perms)


# Products by heads whose output has the tokens first.
TRANSPOSE_BATCH_MAT_MUL = OpSpec(
    kernel="TransposeBatchMatMul",
    call="torch_npu.npu_transpose_batchmatmul",
    slots=("x1", "x2", "bias", "scale"),
    optional=_OPTIONAL,
    reference=multiply_heads,
    build=_transpose_build,
    flops=flops_by(_transpose_sizes),
    group=group_by_weight,
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        rules.reads(
            "expected (heads,tokens,K) or (tokens,heads,K), (heads,K,N), and an output "
            "(tokens,heads,N)",
            _transpose_sizes,
        ),
        Constraint(
            "expected K and N as multiples of 128, and below 65536: N, heads, and K, or heads * K "
            "if the tokens come first",
            _is_legal,
        ),
        rules.floating((0, 1)),
        rules.one_dtype((0, 1)),
        rules.absent("a bias or a scale cannot be replayed", _BIAS, _SCALE),
    ),
    lookups=looked_up("aten.bmm.default", order=1),
)
