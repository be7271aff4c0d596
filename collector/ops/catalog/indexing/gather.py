"""Elements, rows and blocks read by index, and the indices of elements that are not zero."""

from math import prod
from typing import Any

from collector.model.case import Case
from collector.model.lookup import OUTPUT_ELEMENTS, make_lookups
from collector.ops import rules
from collector.ops.catalog.indexing import _lookup
from collector.ops.launching import As, arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct_along, picked_bytes
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker

# Single elements, looked up by number along one dimension: the last one that alone may differ
# between index and input, or else the last of all.
_RUN = 32


def _elements_axis(case: Case) -> int | None:
    x, index = input_shape(case, 0), input_shape(case, 1)
    if len(x) != len(index):
        return None
    fits = (x[:i] + x[i + 1 :] == index[:i] + index[i + 1 :] for i in range(len(x)))
    axes = [axis for axis, fit in enumerate(fits) if fit and x[axis]]
    return axes[-1] if axes else None


def _elements_build(case: Case, make: TensorMaker) -> Call:
    x, index = (case.inputs or ())[:2]
    axis, table = rules.accepted(_elements_axis(case)), like.normal(x, make)
    size = input_shape(case, 0)[axis]
    return Call(table, axis, distinct_along(make, index.shape or (), axis, size, index.dtype))


def _has_runs(case: Case) -> bool:
    """Return whether runs are long enough; else CANN transposes, and the kernel's shape differs."""
    x, axis = input_shape(case, 0), _elements_axis(case) or 0
    return axis == len(x) - 1 or elements(x[axis + 1 :]) > _RUN


GATHER_ELEMENTS_V2 = OpSpec(
    kernel="GatherElementsV2",
    call="torch.gather",
    assumes="indices spread over the dimension, each element once if there are enough",
    # GatherElements takes other dtypes
    signature="x T:float|INT32, index integer[*s] -> y T[*s]",
    build=_elements_build,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        rules.reads(
            "expected an index that differs from the input in at most one dimension", _elements_axis
        ),
        Constraint(
            f"expected more than {_RUN} elements after a dimension that is not the last", _has_runs
        ),
    ),
    lookups=make_lookups("aten.gather.default"),
)


def _v2_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; indices are spread over the table, since few rows would stay in the cache."""
    table, indices, *_ = case.inputs or ()
    rows = input_shape(case, 0)[0]
    if _picks_one(case):
        return Call(like.normal(table, make), rows // 2)
    return Call(like.normal(table, make), like.integers(indices, make, 0, rows))


def _v2_reference(torch: Any, table: Any, indices: Any) -> Any:
    if isinstance(indices, int):
        return table.select(0, indices).clone()
    return torch.embedding(table, indices)


def _select(api: Any, table: Any, index: int) -> Any:
    """Select one row and copy it: a graph returns results, not views. The copy adds no kernel."""
    return table.select(0, index).clone()


def _picks_one(case: Case) -> bool:
    """Return whether the row selects one row of a tensor, without its dimension, by a scalar index.

    The index is not a tensor of torch."""
    return not input_shape(case, 1)


# Rows of a table, looked up by number along the first dimension: an embedding. A graph also uses it
# to select one row of any tensor, where torch makes a view: the index has no dimensions.
GATHER_V2 = OpSpec(
    kernel="GatherV2",
    call="torch.nn.functional.embedding",
    assumes="rows spread over the table, all equally likely",
    signature="table T[rows, d], indices integer[*s], axis -> y T[*s, d] where rows > 0;"
    "table T[rows, *part], indices integer[], axis[#] -> y T[*part] where rows > 0",
    reference=_v2_reference,
    build=_v2_build,
    traffic=picked_bytes,
    moves_data=True,
    npu=NpuCall(
        run=lambda api, table, indices: api(indices, table),
        graph=GraphCall(takes=_picks_one, run=_select),
    ),
    twins=("GatherV2AiCore",),
    lookups=(
        *make_lookups("aten.embedding.default", tc_input_count=2, interpolation=OUTPUT_ELEMENTS),
        *make_lookups("aten.index_select.default", order=1, tc_input_count=2),
        *make_lookups("aten.index.Tensor", order=1, tc_input_count=1),
    ),
    launched_by={"aclnnEmbedding": arguments_at(outputs=2)},
    shown={"axis": As.ONE_NUMBER},
)


def _v3_axis(case: Case) -> int | None:
    table, indices, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    fits = (size and out == table[:i] + indices + table[i + 1 :] for i, size in enumerate(table))
    return next((axis for axis, fit in enumerate(fits) if fit), None)


def _v3_build(case: Case, make: TensorMaker) -> Call:
    table, indices, *_ = case.inputs or ()
    axis = rules.accepted(_v3_axis(case))
    rows = like.normal(table, make)
    return Call(rows, axis, like.integers(indices, make, 0, input_shape(case, 0)[axis]))


# Parts of a tensor, looked up by number along the first dimension that fits the output.
#
# `index_select` launches it on A2 and A3; an embedding launches GatherV2.
GATHER_V3 = OpSpec(
    kernel="GatherV3",
    call="torch.index_select",
    assumes="rows spread over the table, all equally likely",
    signature="table T, indices integer[count], axis -> y T",
    build=_v3_build,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        rules.reads("expected an output with a part of the table for each index", _v3_axis),
    ),
    lookups=(
        *make_lookups("aten.embedding.default", order=1, tc_input_count=2),
        *make_lookups("aten.index_select.default", tc_input_count=2),
    ),
    launched_by={"aclnnIndexSelect": arguments_at(indices=2, outputs=3)},
    shown={"axis": As.ONE_NUMBER},
)


_FLAGS, _INDICES = 1, 3
_TAIL = 32


def _index_build(case: Case, make: TensorMaker) -> Call:
    x, _, _, *indices = case.inputs or ()
    kept = _lookup.kept_dims(case, _FLAGS, _INDICES)
    sizes = zip(indices, input_shape(case, 0)[kept:], strict=False)
    numbers = [like.integers(index, make, 0, size) for index, size in sizes]
    return Call(like.normal(x, make), [None] * kept + numbers)


def _index_fits(case: Case) -> bool:
    found = _lookup.selected_shape(case, _FLAGS, _INDICES)
    return found is not None and output_shape(case) == found


# Parts of a tensor, looked up by number in one dimension or in several adjacent ones: `x[i, j]`, or
# `x[:, i]` if the flags mark a dimension as kept.
INDEX = OpSpec(
    kernel="Index",
    call="torch.ops.aten.index",
    assumes="indices spread over the tensor, all equally likely",
    signature="x T, indexed_sizes, indexed_strides, indices I:integer[*s]+ -> y T",
    build=_index_build,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint("expected an output of the shape that the indices select", _index_fits),
        _lookup.dense_enough(_FLAGS, _INDICES, _TAIL),
    ),
    lookups=make_lookups("aten.index.Tensor", tc_input_count=1, interpolation=OUTPUT_ELEMENTS),
    launched_by={
        "aclnnIndex": arguments_at(indexed_sizes=1, indexed_strides=2, indices=1, outputs=2)
    },
    shown={"indexed_sizes": As.COUNT, "indexed_strides": As.COUNT},
)


def _non_zero_build(case: Case, make: TensorMaker) -> Call:
    (slot,), (rows, *_) = case.inputs or (), output_shape(case) or (0,)
    x = like.full(slot, make, 0)
    x.view(-1)[make.permutation(slot.numel, "INT64")[:rows]] = 1
    return Call(x, output_shape(case))


def _non_zero_run(nonzero: Any, x: Any, shape: Any) -> Any:
    """Wait for the device: torch_npu reads back how many elements were found.

    On hardware they are as many as were set; a runtime that only records calls may report any
    number."""
    return nonzero(x).view(-1)[: prod(shape)].view(shape)


# Positions of the elements that are not zero. As many elements are set as the output has rows. The
# positions of an input of one dimension may have one dimension.
NON_ZERO = OpSpec(
    kernel="NonZero",
    call="torch.nonzero",
    assumes="as many nonzero elements as the output has rows, spread over the tensor",
    signature="x[*s] -> y INT64[found, s_rank]! where found <= s;"
    "x[n] -> y INT64[found]! where found <= n",
    reference=lambda torch, x, shape: torch.nonzero(x).view(shape),
    build=_non_zero_build,
    npu=NpuCall(run=_non_zero_run),
    lookups=make_lookups("aten.nonzero.default"),
    launched_by=dict.fromkeys(("aclnnNonzero", "aclnnNonzeroV2"), arguments_at(unknown="outputs")),
)
