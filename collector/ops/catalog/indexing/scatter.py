"""Elements, rows and blocks written or added by index."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.indexing import _lookup
from collector.ops.launching import As, arguments_at, calls
from collector.ops.parts import like, tensors
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, GraphCall, Need, NpuCall, OpSpec, TensorMaker


def _embedding_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with sorted row numbers, as the kernel requires, and their rows of `grad`."""
    grad, rows, *_ = _embedding_build_npu(case, make).args
    ordered = rows.view(-1).long().sort()  # index_fill_ takes no other integers
    table = like.empty((case.outputs or ())[0], make).zero_()
    return Call(grad.view(rows.numel(), -1), ordered.values, ordered.indices, table)


def _embedding_build_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call without padding rows, and without scaling by how often a row was looked up."""
    grad, rows, _ = case.inputs or ()
    table_rows = (output_shape(case) or (1,))[0]
    gradient = like.normal(grad, make)
    numbers = make.integers(gradient.shape[:-1], rows.dtype, 0, table_rows)
    return Call(gradient, numbers, table_rows, -1, False)


def _embedding_reference(torch: Any, grad: Any, rows: Any, origins: Any, table: Any) -> Any:
    # Only the named rows are cleared: the kernel also does not touch other rows of the table.
    return table.index_fill_(0, rows, 0).index_add_(0, rows, grad[origins])


def _embedding_traffic(case: Case) -> int:
    """Return the bytes: all inputs once, and a written row for each row of `grad`."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in slots) + slots[0].size_bytes


# Gradient of an embedding's table: the gradient of each looked-up row, added to that row.
#
# On an NPU other kernels sort the row numbers and clear the table.
EMBEDDING_DENSE_GRAD_V2 = OpSpec(
    kernel="EmbeddingDenseGradV2",
    call="torch.ops.aten.embedding_dense_backward",
    assumes="rows spread over the table, all equally likely, so that some repeat often",
    signature="grad T[*t, d], sorted_rows integer[*rows], origins integer[*rows]"
    " -> table T[n, d]! where t == rows, rows > 0, n > 0",
    reference=_embedding_reference,
    build=_embedding_build,
    operations="t * d",
    traffic=_embedding_traffic,
    npu=NpuCall(build=_embedding_build_npu),
    launched_by={"aclnnEmbeddingDenseBackward": arguments_at(unknown="inputs")},
)


def _call(case: Case, make: TensorMaker, index_dtype: str) -> Call:
    x, index = (case.inputs or ())[:2]
    rows = tensors.distinct_numbers(make, index.numel, input_shape(case, 0)[0], index_dtype)
    return Call(like.normal(x, make), 0, rows, 0)


def _fill_traffic(case: Case) -> int:
    """Return the bytes: the index and the value are read, the rows written."""
    x, index, value = case.inputs or ()
    written = index.numel * elements(input_shape(case, 0)[1:])
    return index.size_bytes + value.size_bytes + rules.accepted(x.known_dtype).bytes_of(written)


# Rows of a tensor set to one value, in place. A profile records neither the dimension nor the
# value: the first dimension and 0 are used.
INDEX_FILL = OpSpec(
    kernel="IndexFill",
    call="torch.Tensor.index_fill_",
    assumes="the first dimension; rows spread over it, each once",
    signature="x T:float|integer|BOOL[rows, *part], index integer[count], value"
    " -> x T[rows, *part] where rows > 0",
    build=lambda case, make: _call(case, make, "INT64"),  # a cpu takes no other
    traffic=_fill_traffic,
    moves_data=True,
    npu=NpuCall(build=lambda case, make: _call(case, make, (case.inputs or ())[1].dtype)),
    launched_by={"aclnnInplaceIndexFill": arguments_at(index=2, value=3, outputs=0)},
)


_VALUE, _FLAGS, _INDICES = 1, 2, 4
_TAIL = 1024
_ATOMIC = ("FLOAT", "FLOAT16", "DT_BF16", "INT32", "INT8", "BOOL")
_OTHERS = ("INT64", "UINT8")
_FEW, _SHORT = 100, 128


def _put_build(case: Case, make: TensorMaker) -> Call:
    x, value, _, _, index, *_ = case.inputs or ()
    kept, count = _lookup.kept_dims(case, _FLAGS, _INDICES), len(_lookup.indices_of(case, _INDICES))
    sizes = input_shape(case, 0)[kept : kept + count]
    indices = tensors.distinct_coordinates(make, index.shape or (), sizes, index.dtype)
    return Call(like.normal(x, make), [None] * kept + indices, like.normal(value, make))


def _put_fits(case: Case) -> bool:
    return _lookup.selected_shape(case, _FLAGS, _INDICES) == input_shape(case, _VALUE)


def _is_on_vector_cores(case: Case) -> bool:
    """Return whether vector cores run the case.

    A2 and A3 use their AI CPU for dtypes that they cannot add atomically, unless the case is small.
    """
    dtype, index = (case.inputs or ())[0].known_dtype, (case.inputs or ())[_INDICES]
    end = _lookup.kept_dims(case, _FLAGS, _INDICES) + len(_lookup.indices_of(case, _INDICES))
    tail = elements(input_shape(case, 0)[end:])
    is_small = index.numel <= _FEW and tail <= _SHORT
    return is_small or (dtype is not None and dtype.spelling in _ATOMIC)


# Parts of a tensor replaced at indices, in place: `x[i, j] = value`.
#
# A profile does not record whether they are added instead: here they are not. No index repeats if
# there are enough positions: a cache has one slot for each token.
INDEX_PUT_V2 = OpSpec(
    kernel="IndexPutV2",
    call="torch.ops.aten.index_put_",
    assumes="indices spread over the tensor, each position once if there are enough",
    signature="x T:float|integer|INT8|UINT8|BOOL[*s], value T, indexed_sizes, indexed_strides,"
    " indices I:integer[*i]+ -> x T[*s]",
    build=_put_build,
    traffic=lambda case: tensors.placed_bytes(case, _VALUE),
    moves_data=True,
    constraints=(
        Constraint("expected a value of the shape that the indices select", _put_fits),
        _lookup.dense_enough(_FLAGS, _INDICES, _TAIL),
        Constraint(
            f"{' or '.join(_OTHERS)}: expected at most {_FEW} indices, and at most {_SHORT} "
            "elements after them",
            _is_on_vector_cores,
        ),
    ),
    launched_by={
        "aclnnIndexPutImpl": arguments_at(
            value=2, indexed_sizes=1, indexed_strides=1, indices=1, outputs=0
        )
    },
    shown={"indexed_sizes": As.COUNT, "indexed_strides": As.COUNT},
)


def _axis(case: Case) -> int | None:
    """Return the one dimension, after the batch, in which the updates are shorter.

    None if there is none or several."""
    cache, updates = input_shape(case, 0), input_shape(case, 2)
    if len(cache) != len(updates):
        return None
    shorter = [i for i, size in enumerate(cache) if updates[i] != size]
    fits = len(shorter) == 1 and 0 < updates[shorter[0]] < cache[shorter[0]]
    return shorter[0] if fits else None


def _scatter_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with a start position per batch, spread over the cache."""
    cache, indices, updates = case.inputs or ()
    axis = rules.accepted(_axis(case))
    free = input_shape(case, 0)[axis] - input_shape(case, 2)[axis]
    old, starts = like.normal(cache, make), like.integers(indices, make, 0, free + 1)
    return Call(old, starts, like.normal(updates, make), axis)


def _scatter_reference(torch: Any, cache: Any, indices: Any, updates: Any, axis: int) -> Any:
    steps = torch.arange(updates.shape[axis], device=updates.device)
    along = [1] * updates.dim()
    starts = indices.long().view(-1, *along[1:])
    along[axis] = -1
    return cache.scatter_(axis, (starts + steps.view(along)).expand(updates.shape), updates)


# A part of each batch of a cache replaced, in place, from a separate start position: keys and
# values of a decode step in a graph.
SCATTER = OpSpec(
    kernel="Scatter",
    call="torch_npu.scatter_update_",
    assumes="any position of the cache for each batch",
    signature="x T[batch, *cache], indices integer[batch], updates T[batch, *new]"
    " -> x T[batch, *cache]",
    reference=_scatter_reference,
    build=_scatter_build,
    traffic=lambda case: tensors.placed_bytes(case, 2),
    moves_data=True,
    constraints=(
        rules.reads("expected updates like the input but shorter in one dimension", _axis),
    ),
    npu=NpuCall(graph=GraphCall(takes=lambda case: True)),
)


def _elements_build(case: Case, make: TensorMaker) -> Call:
    x, index, updates = case.inputs or ()
    *_, size = input_shape(case, 0)
    old, shape = like.normal(x, make), index.shape or ()
    last = len(shape) - 1
    places = tensors.distinct_along(make, shape, last, size, index.dtype)
    return Call(old, last, places, like.normal(updates, make))


# Single elements replaced at indices, in place, along the last dimension.
#
# CANN's kernel scatters along the last dimension only. For another dimension aclnn transposes
# first, and the row has the transposed shapes (aclnn_scatter.cpp of ops-nn). A profile does not
# record whether elements are added instead; here they are not. Between the first and the last
# dimension the index is as long as the tensor (else CANN's AI CPU runs it).
SCATTER_ELEMENTS_V2 = OpSpec(
    kernel="ScatterElementsV2",
    call="torch.Tensor.scatter_",
    assumes="the last dimension; indices spread over it, each element once if there are enough",
    signature="x T:float|INT32|INT8|UINT8[rows, *inner, n], index integer[count, *inner, k],"
    " updates T[count, *inner, k] -> x T[rows, *inner, n] where count <= rows, n > 0;"
    "x T:float|INT32|INT8|UINT8[n], index integer[k], updates T[k] -> x T[n] where n > 0",
    build=_elements_build,
    traffic=lambda case: tensors.placed_bytes(case, 2),
    moves_data=True,
    lookups=(
        *make_lookups("aten.scatter.value", tc_input_count=2),
        *make_lookups("aten.scatter.src"),
    ),
    launched_by=calls("aclnnScatter", "aclnnScatterAdd"),
)


def _nd_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with one tensor of coordinates per dimension, as torch takes them."""
    x, indices, updates = case.inputs or ()
    *rows, count = input_shape(case, 1)
    sizes, old = input_shape(case, 0)[:count], like.normal(x, make)
    columns = tensors.distinct_coordinates(make, tuple(rows), sizes, indices.dtype)
    return Call(old, tuple(columns), like.normal(updates, make))


def _nd_build_npu(case: Case, make: TensorMaker) -> Call:
    x, columns, updates = _nd_build(case, make).args
    return Call(x, make.torch.stack(columns, -1), updates)


def _nd_fits(case: Case) -> bool:
    x, (*rows, count) = input_shape(case, 0), input_shape(case, 1)
    is_in_x = 0 < count <= len(x) and all(x[:count])
    return is_in_x and input_shape(case, 2) == (*rows, *x[count:])


# Parts of a tensor replaced at rows of coordinates, in place: tokens written to a cache.
#
# No part is named twice if there are enough: a cache has one slot for each token. The call that
# ends with `_` works in place; the one without it copies the tensor first.
SCATTER_ND_UPDATE = OpSpec(
    kernel="ScatterNdUpdate",
    call="torch_npu.npu_scatter_nd_update_",
    assumes="indices spread over the tensor, each position once if there are enough",
    signature="x T:float|integer|INT8|INT16|BOOL[pages, *page], indices integer[*rows, count],"
    " updates T -> x T[pages, *page] where rows_rank > 0",
    reference=lambda torch, x, columns, updates: x.index_put_(columns, updates),
    build=_nd_build,
    traffic=lambda case: tensors.placed_bytes(case, 2),
    moves_data=True,
    constraints=(Constraint("expected coordinates in x, and an update for each", _nd_fits),),
    npu=NpuCall(build=_nd_build_npu),
    twins=("ScatterNdUpdateAiCore",),
    launched_by={"aclnnScatterNdUpdate": arguments_at(outputs=0)},
)


def _flat_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with updates of the shape that torch requires."""
    x, columns, updates = _nd_build(case, make).args
    return Call(x, columns, updates.view(*columns[0].shape, *x.shape[len(columns) :]))


def _flat_launch(api: Any, x: Any, *others: Any) -> Any:
    """Call the function, which returns nothing."""
    api(x, *others)
    return x


def _flat_fits(case: Case) -> bool:
    """Return whether there are as many numbers in an update as the coordinates select."""
    x, (*rows, count), updates = (input_shape(case, i) for i in range(3))
    is_in_x = 0 < count <= len(x) and all(x[:count])
    part = elements(updates[len(rows) :]), elements(x[count:])
    return is_in_x and updates[: len(rows)] == tuple(rows) and part[0] == part[1]


# The same of vLLM-Ascend's own library: tokens of DeepSeek-V4 written to pages of a cache, each at
# (page, place). Its updates may lack dimensions of 1. Coordinates below 0 would be left out.
#
# 0.23 serves by ScatterNdUpdateV2; later sources by ScatterNdUpdateSk, which no released wheel has.
SCATTER_ND_UPDATE_V2 = replace(
    SCATTER_ND_UPDATE,
    kernel="ScatterNdUpdateV2",
    call="torch.ops._C_ascend.npu_scatter_nd_update_v2",
    build=_flat_build,
    constraints=(Constraint("expected coordinates in x, and an update for each", _flat_fits),),
    npu=NpuCall(
        run=_flat_launch,
        build=_nd_build_npu,
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
    twins=(),
    launched_by={"aclnnScatterNdUpdateV2": arguments_at(outputs=0)},
)

SCATTER_ND_UPDATE_SK = replace(
    SCATTER_ND_UPDATE_V2,
    kernel="ScatterNdUpdateSk",
    launched_by={},
    call="torch.ops._C_ascend.npu_scatter_nd_update_sk",
)
