"""Sorting, the maximum of each row, and the sampling filter that removes unlikely tokens."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.slots import (
    given,
    input_shape,
    output_shape,
    output_slot,
)
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker, dense_bytes

# Indices in the dtype of the kernel. Ascend's kernels for sorting and searching write INT32, and
# aclnn converts that for torch, which expects INT64.


def narrowed(indices: Any, dtype: Any) -> Any:
    """Return the indices in the dtype of the row, without an extra kernel.

    An INT32 view reads the lower half of each number (both are little-endian, and indices are not
    negative)."""
    if indices.dtype == dtype:
        return indices
    return indices.unsqueeze(-1).view(dtype)[..., 0]


# The sampling filter that removes unlikely tokens, by their number (k) and by their probability
# (p).
#
# The kernels get the logits sorted; the functions sort them first, with a separate kernel. A
# profile does not record k and p: common values here.

_P, _K = 2, 3
_USUAL_P, _USUAL_K = 0.9, 50


def top_k_top_p(kernel: str, call: str, npu: NpuCall) -> OpSpec:
    """Return an operator; `npu.build` makes the logits and the limits, in the function's order."""
    return OpSpec(
        kernel=kernel,
        call=call,
        assumes="scores at random",
        signature="sorted_value T:float[requests, v], sorted_indices INT32[requests, v],"
        " p T[requests]?, k INT32[requests]? -> y T[requests, v]"
        " where requests * v > 0, has_p or has_k",
        infinite=frozenset({0}),  # the tokens that the filter removes
        reference=_top_k_top_p_reference,
        build=_top_k_top_p_build,
        operations="5 * requests * v",
        npu=npu,
        launched_by={
            f"aclnn{kernel.removesuffix('WithSorted')}": arguments_at(
                sorted_indices=0, p=1, k=2, outputs=3
            )
        },
        shown={"sorted_indices": "INT32"},
    )


def build_limits(case: Case, make: TensorMaker) -> tuple[Any, Any, Any]:
    """Build logits as a model returns them, and p and k, or None, for each request."""
    logits, most = (case.inputs or ())[0], min(_USUAL_K, input_shape(case, 0)[1])
    p, k = like.full(given(case, _P), make, _USUAL_P), like.full(given(case, _K), make, most)
    return like.normal(logits, make), p, k


def _top_k_top_p_build(case: Case, make: TensorMaker) -> Call:
    logits, p, k = build_limits(case, make)
    ordered = logits.sort(-1)
    return Call(ordered.values, ordered.indices.int(), p, k)


def _top_k_top_p_reference(torch: Any, ordered: Any, numbers: Any, p: Any, k: Any) -> Any:
    """Filter logits: removed ones become the lowest number, since -inf would look like an error."""
    lowest = torch.finfo(ordered.dtype).min
    kept = ordered
    if k is not None:
        least = ordered.gather(1, (ordered.shape[1] - k.long()).unsqueeze(1))
        kept = kept.masked_fill(ordered < least, lowest)
    if p is not None:
        unlikely = kept.float().softmax(-1).cumsum(-1) <= (1 - p.float()).unsqueeze(1)
        unlikely[:, -1] = False
        kept = kept.masked_fill(unlikely, lowest)
    return torch.empty_like(kept).scatter_(1, numbers.long(), kept)


def _custom_build(case: Case, make: TensorMaker) -> Call:
    logits, p, k = build_limits(case, make)
    return Call(logits, p=p, k=k)


# The sampling filter by k and p, with vLLM-Ascend's own kernel; its function sorts first.
APPLY_TOP_KTOP_PCUSTOM = top_k_top_p(
    "ApplyTopKTopPCustom",
    "torch.ops._C_ascend.npu_apply_top_k_top_p",
    NpuCall(build=_custom_build, needs=frozenset({Need.VLLM_ASCEND, Need.CUSTOM_OPP})),
)

# The sampling filter by k and p, with CANN's kernel; its function sorts first.
APPLY_TOP_KTOP_PWITH_SORTED = top_k_top_p(
    "ApplyTopKTopPWithSorted",
    "torch_npu.npu_top_k_top_p",
    NpuCall(build=lambda case, make: Call(*build_limits(case, make))),
)

# The position of the maximum of each row: greedy sampling. A profile does not record the dimension:
# the last one here.


def _arg_max_build(case: Case, make: TensorMaker) -> Call:
    x, indices = (case.inputs or ())[0], output_slot(case)
    stays = output_shape(case) == (*input_shape(case, 0)[:-1], 1)
    dtype = make.dtype(indices.dtype if indices else "INT64")
    return Call(like.normal(x, make), stays, dtype)


def _arg_max_run(argmax: Any, x: Any, stays: bool, dtype: Any) -> Any:
    """Run one ArgMaxV2, and a Cast that aclnn adds to return INT64."""
    return narrowed(argmax(x, -1, stays), dtype)


ARG_MAX_V2 = OpSpec(
    kernel="ArgMaxV2",
    call="torch.argmax",
    assumes="numbers at random",
    signature="x T:number[*rows, n], dimension integer[#]? -> indices integer[*rows]|[*rows, 1]"
    " where rows * n > 0",
    traffic=lambda case: dense_bytes(case),
    reference=lambda torch, x, stays, dtype: torch.argmax(x, -1, stays).to(dtype),
    build=_arg_max_build,
    operations="rows * n",
    npu=NpuCall(run=_arg_max_run),
    lookups=make_lookups("aten.argmax.default", tc_input_count=1),
    launched_by={"aclnnArgMax": arguments_at(outputs=3)},
    shown={"dimension": "INT64", "indices": "INT32"},
)


_INDICES, _VALUES = range(2)


def _max_folded(case: Case) -> tuple[int, bool] | None:
    """Return the searched dimension, the last that fits, and whether it stays as 1."""
    x, out = input_shape(case, 0), output_shape(case, _VALUES)
    for dim in reversed(range(len(x))):
        for stays in (False, True):
            if out == (*x[:dim], *((1,) if stays else ()), *x[dim + 1 :]):
                return dim, stays
    return None


def _max_build(case: Case, make: TensorMaker) -> Call:
    (x, *_), indices = case.inputs or (), (case.outputs or ())[_INDICES]
    dim, stays = _max_folded(case) or (-1, False)
    return Call(like.normal(x, make), dim, stays, make.dtype(indices.dtype))


def _max_reference(torch: Any, x: Any, dim: int, stays: bool, dtype: Any) -> Any:
    values, indices = torch.max(x, dim, stays)
    return indices.to(dtype), values


def _max_run(search: Any, x: Any, dim: int, stays: bool, dtype: Any) -> Any:
    """Run one kernel, and a Cast that aclnn adds to return INT64."""
    values, indices = search(x, dim, stays)
    return narrowed(indices, dtype), values


# The maximum of each row, and its position.
ARG_MAX_WITH_VALUE = OpSpec(
    kernel="ArgMaxWithValue",
    call="torch.max",
    assumes="numbers at random; of equal dimensions the last is searched",
    signature="x T:number[*s] -> indices integer[*rows], values T[*rows]! where s > 0",
    reference=_max_reference,
    build=_max_build,
    operations="s",
    constraints=(rules.reads("expected a value for each row of the input", _max_folded),),
    npu=NpuCall(run=_max_run),
    lookups=make_lookups("aten.max.dim"),
    launched_by={"aclnnMaxDim": arguments_at(outputs=(4, 3))},
    shown={"indices": "INT32"},
)


def _sort_build(case: Case, make: TensorMaker) -> Call:
    (x,), indices = case.inputs or (), output_slot(case, 1)
    return Call(like.normal(x, make), make.dtype(indices.dtype if indices else "INT64"))


def _sort_reference(torch: Any, x: Any, index_dtype: Any) -> Any:
    values, indices = torch.sort(x, dim=-1, descending=True)
    return values, indices.to(index_dtype)


def _sort_run(sort: Any, x: Any, index_dtype: Any) -> Any:
    """Run one Sort, and a Cast that aclnn adds; also where the row's indices are INT32."""
    values, indices = sort(x, dim=-1, descending=True)
    return values, narrowed(indices, index_dtype)


_TOP = 1  # the output of positions


def _top_build(case: Case, make: TensorMaker) -> Call:
    (x, *_), indices = case.inputs or (), output_slot(case, _TOP)
    count = (output_shape(case) or (1,))[-1]
    return Call(like.normal(x, make), count, make.dtype(indices.dtype if indices else "INT32"))


def _top_run(topk: Any, x: Any, count: int, index_dtype: Any) -> Any:
    """Run one TopKV2, and a Cast that aclnn adds."""
    values, indices = topk(x, count)
    return values, narrowed(indices, index_dtype)


def _top_reference(torch: Any, x: Any, count: int, index_dtype: Any) -> Any:
    values, indices = torch.topk(x, count)
    return values, indices.to(index_dtype)


# The largest numbers along the last dimension, in order, and their positions.
TOP_K_V2 = OpSpec(
    kernel="TopKV2",
    call="torch.topk",
    assumes="numbers at random, in no order",
    signature="x T[*rows, n], k integer[#]"
    " -> values T[*rows, count]!, indices integer[*rows, count] where 0 < count <= n",
    reference=_top_reference,
    build=_top_build,
    operations="rows * n",
    npu=NpuCall(run=_top_run),
    lookups=make_lookups("aten.topk.default", tc_input_count=1),
    launched_by={"aclnnTopk": arguments_at(outputs=5), "aclnnTopkV2": arguments_at(outputs=6)},
    shown={"k": "INT32", "indices": "INT32"},
)


# Values in descending order along the last dimension, and their original positions.
SORT = OpSpec(
    kernel="Sort",
    call="torch.sort",
    assumes="numbers at random, in no order",
    signature="x T[*s] -> values T[*s], indices integer[*s]",
    reference=_sort_reference,
    build=_sort_build,
    npu=NpuCall(run=_sort_run),
    lookups=make_lookups("aten.sort.default"),
    shown={"indices": "INT32"},
)
