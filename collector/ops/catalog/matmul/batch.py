"""Products of matrices in batches, and by heads."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.matmul._product import (
    OUTPUT_FITS,
    Product,
    group_by_weight,
    is_wide,
    read_product,
    wide_output,
)
from collector.ops.launching import As, arguments_at, calls
from collector.ops.parts import like
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import input_shape
from collector.ops.spec import (
    Call,
    Constraint,
    Need,
    NpuCall,
    OpSpec,
    TensorMaker,
    build_from_slots,
)


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
    # one matrix is first read as a linear layer's, batches as NN
    signature="a T:floating[m, k], b T[n, k], -bias, -offset -> y[m, n];"
    "a T:floating[&batch, m, k], b T[&batch, <k, n>], -bias, -offset -> y[*batch, m, n];"
    "a T:floating[&batch, k, m], b T[&batch, <k, n>], -bias, -offset -> y[*batch, m, n]",
    reference=_reference,
    build=_build,
    flops=flops_by(_product),
    group=group_by_weight,
    npu=NpuCall(run=_launch),
    constraints=(
        Constraint(
            "expected operands of as many dimensions",
            lambda case: len(input_shape(case, 0)) == len(input_shape(case, 1)),
        ),
        OUTPUT_FITS,
        Constraint(
            "FLOAT output of 16-bit products: expected (B,M,K) and as many (K,N)",
            lambda case: not is_wide(case) or _is_one_batch(case),
        ),
    ),
    lookups=make_lookups("aten.bmm.default"),
    launched_by=calls("aclnnBatchMatMul"),
    shown={"a": As.MATRICES, "b": As.MATRICES},
)


# Products by heads: (heads, tokens, K) @ (heads, K, N) -> (tokens, heads, N), as in attention with
# absorbed weights, in one kernel without a copy for the transpose.


def multiply_heads(torch: Any, x: Any, weight: Any, out: Any) -> Any:
    """Multiply `x` (heads, tokens, K) by a weight and write to (tokens, heads, N)."""
    torch.bmm(x, weight, out=out.transpose(0, 1))
    return out


def _heads_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the operands, and the memory of the output, which the caller provides."""
    x, weight = case.inputs or ()
    out = make.empty((*input_shape(case, 0)[:2], input_shape(case, 1)[2]), x.dtype)
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
    signature="x T:half[t, heads, k], weight T[heads, k, n] -> y T[t, heads, n]",
    reference=multiply_heads,
    build=_heads_build,
    operations="2 * heads * t * k * n",
    group=group_by_weight,
    npu=NpuCall(
        run=_heads_launch,
        build=_heads_build_for_npu,
        needs=frozenset({Need.VLLM_ASCEND}),
    ),
    launched_by={"batch_matmul_transpose": arguments_at(outputs=2)},
)


_HEADS_FIRST, _TOKENS_FIRST = (0, 1, 2), (1, 0, 2)
# of aclnnTransposeBatchMatMul for A2 and A3
_LEGAL = "k % 128 == 0, n % 128 == 0, min(k, n, heads) > 0, max(n, heads) < 65536"


def _is_tokens_first(case: Case) -> bool:
    return input_shape(case, 0)[0] != input_shape(case, 1)[0]


def _transpose_build(case: Case, make: TensorMaker) -> Call:
    x, weight = build_from_slots(case, make).args[:2]
    x = x.transpose(0, 1) if _is_tokens_first(case) else x
    out = make.empty((x.shape[1], x.shape[0], weight.shape[2]), (case.inputs or ())[0].dtype)
    return Call(x, weight, out)


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    order = _TOKENS_FIRST if _is_tokens_first(case) else _HEADS_FIRST
    perms = {"perm_x1": order, "perm_x2": _HEADS_FIRST, "perm_y": _TOKENS_FIRST}
    return Call(*build_from_slots(case, make).args[:2], **perms)


# Products by heads whose output has the tokens first.
TRANSPOSE_BATCH_MAT_MUL = OpSpec(
    kernel="TransposeBatchMatMul",
    call="torch_npu.npu_transpose_batchmatmul",
    signature="x1 T:floating[heads, t, k], x2 T[heads, k, n], -bias, -scale -> y T[t, heads, n]"
    f" where {_LEGAL}, k < 65536;"
    "x1 T:floating[t, heads, k], x2 T[heads, k, n], -bias, -scale -> y T[t, heads, n]"
    f" where {_LEGAL}, heads * k < 65536",
    reference=multiply_heads,
    build=_transpose_build,
    operations="2 * heads * t * k * n",
    group=group_by_weight,
    npu=NpuCall(build=_build_for_npu),
    lookups=make_lookups("aten.bmm.default", order=1),
)
