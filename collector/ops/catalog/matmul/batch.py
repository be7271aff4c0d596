"""Products of matrices in batches, and by heads."""

from dataclasses import dataclass
from typing import Any

from collector.model.case import Case
from collector.ops.catalog.matmul._product import (
    OUTPUT_FITS,
    Product,
    check_release,
    group_by_weight,
    is_wide,
    read_product,
)
from collector.ops.dtypes import floating, inputs_are, one_dtype
from collector.ops.parts import like
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import agrees, given, input_shape
from collector.ops.spec import (
    Call,
    Constraint,
    Need,
    NpuCall,
    OpSpec,
    TensorMaker,
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


# Products of matrices in batches; the runtime chooses the kernel.
#
# For matrices without a batch, which some tables have, NPUs launch a kernel of MatMulV2's family,
# and the measurement is stored there.

_BIAS, _OFFSET = 2, 3
_OPTIONAL = frozenset({_BIAS, _OFFSET})


def _product(case: Case) -> Product | None:
    """Return the product: batches are first read as NN, one matrix as NT, a linear layer's."""
    batched = len(input_shape(case, 0)) > 2
    return read_product(case, ("NN", "NT", "TN", "TT") if batched else ("NT", "NN", "TN", "TT"))


def _build(case: Case, make: TensorMaker) -> Call:
    product, (slot_a, slot_b, *_) = _product(case), case.inputs or ()
    a = like.normal(slot_a, make)
    b = like.normal(slot_b, make)
    wide = {"bmm": make.torch.bmm, "out_dtype": make.dtype("FLOAT")} if is_wide(case) else {}
    if wide and a.device.type == "npu":
        check_release(make, "aten::bmm.dtype")
    return Call(
        a.transpose(-2, -1) if product and product.transposes_a else a,
        b.transpose(-2, -1) if product and product.transposes_b else b,
        **wide,
    )


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


BATCH_MAT_MUL_V2 = OpSpec(
    kernel="BatchMatMulV2",
    twins=("BatchMatMulV3", "BatchMatMulNd"),
    call="torch.matmul",
    slots=("a", "b", "bias", "offset"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(_product),
    group=group_by_weight,
    npu=NpuCall(run=_launch),
    constraints=(
        Constraint(
            "expected two batches of matrices that multiply to the output as NN, NT, TN or TT",
            lambda case: _product(case) is not None,
        ),
        floating((0, 1)),
        one_dtype((0, 1), ()),
        OUTPUT_FITS,
        Constraint(
            "FLOAT output of 16-bit products: expected (B,M,K) and as many (K,N)",
            lambda case: not is_wide(case) or _is_one_batch(case),
        ),
        Constraint(
            "a bias or an offset cannot be replayed",
            lambda case: given(case, _BIAS) is None and given(case, _OFFSET) is None,
        ),
    ),
)


# vLLM-Ascend's own product by heads, tokens first on both sides.


def _heads_sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (True,))


def _heads_tensors(case: Case, make: TensorMaker) -> tuple[Any, Any, Any]:
    """Return the operands, and the memory of the output, which the caller provides."""
    x, weight = (like.normal(slot, make) for slot in case.inputs or ())
    sizes = _heads_sizes(case)
    shape = (sizes.tokens, sizes.heads, sizes.n) if sizes else ()
    return x, weight, make.empty(shape, (case.inputs or ())[0].dtype)


def _heads_build(case: Case, make: TensorMaker) -> Call:
    x, weight, out = _heads_tensors(case, make)
    return Call(x.transpose(0, 1), weight, out)


def _heads_launch(multiply: Any, x: Any, weight: Any, out: Any) -> Any:
    multiply(x, weight, out)
    return out


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
        build=lambda case, make: Call(*_heads_tensors(case, make)),
        needs=frozenset({Need.VLLM_ASCEND}),
    ),
    constraints=(
        Constraint(
            "expected (tokens,heads,K), (heads,K,N), and an output (tokens,heads,N)",
            lambda case: _heads_sizes(case) is not None,
        ),
        inputs_are(("DT_BF16", "FLOAT16"), (0, 1)),
        one_dtype((0, 1)),
    ),
)


# Products by heads whose output has the tokens first.

_SCALE = 3
_LIMIT = 65536
_HEADS_FIRST, _TOKENS_FIRST = (0, 1, 2), (1, 0, 2)


def _transpose_sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (False, True))


def _is_legal(case: Case) -> bool:
    """Return whether the sizes fit aclnnTransposeBatchMatMul's documentation for A2 and A3."""
    sizes = _transpose_sizes(case)
    if sizes is None or sizes.k % 128 or sizes.n % 128:
        return False
    inner = sizes.heads * sizes.k if sizes.tokens_first else sizes.k
    return min(sizes.k, sizes.n, sizes.heads) > 0 and max(inner, sizes.n, sizes.heads) < _LIMIT


def _transpose_tensors(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    x, weight = (case.inputs or ())[:2]
    return like.normal(x, make), like.normal(weight, make)


def _transpose_build(case: Case, make: TensorMaker) -> Call:
    sizes, (x, weight) = (_transpose_sizes(case), _transpose_tensors(case, make))
    if sizes is None:
        return Call(x, weight)
    out = make.empty((sizes.tokens, sizes.heads, sizes.n), (case.inputs or ())[0].dtype)
    return Call(x.transpose(0, 1) if sizes.tokens_first else x, weight, out)


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    sizes = _transpose_sizes(case)
    order = _TOKENS_FIRST if sizes and sizes.tokens_first else _HEADS_FIRST
    perms = {"perm_x1": order, "perm_x2": _HEADS_FIRST, "perm_y": _TOKENS_FIRST}
    return Call(*_transpose_tensors(case, make), **perms)


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
        Constraint(
            "expected (heads,tokens,K) or (tokens,heads,K), (heads,K,N), and an output "
            "(tokens,heads,N)",
            lambda case: _transpose_sizes(case) is not None,
        ),
        Constraint(
            "expected K and N as multiples of 128, and below 65536: N, heads, and K, or heads * K "
            "if the tokens come first",
            _is_legal,
        ),
        floating((0, 1)),
        one_dtype((0, 1)),
        Constraint(
            "a bias or a scale cannot be replayed",
            lambda case: given(case, _BIAS) is None and given(case, _SCALE) is None,
        ),
    ),
)
