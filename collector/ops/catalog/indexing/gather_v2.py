"""Rows of a table, looked up by number along the first dimension: an embedding. A graph takes
one row of any tensor with it, where torch makes a view: its index has no dimensions."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, picked_bytes
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """Indices all over the table: a lookup of few rows would live in the cache."""
    table, indices, *_ = case.inputs or ()
    rows = input_shape(case, 0)[0]
    if _picks_one(case):
        return Call((make.normal(table.shape or (), table.dtype), rows // 2))
    return Call(
        (
            make.normal(table.shape or (), table.dtype),
            make.integers(indices.shape or (), indices.dtype, 0, rows),
        )
    )


def _reference(torch: Any, table: Any, indices: Any) -> Any:
    if isinstance(indices, int):
        return table.select(0, indices).clone()
    return torch.embedding(table, indices)


def _run(api: Any, table: Any, indices: Any) -> Any:
    return api(indices, table)


def _select(api: Any, table: Any, index: int) -> Any:
    """A graph gives back what it computes and no views: the copy becomes none of its kernels."""
    return table.select(0, index).clone()


def _picks_one(case: Case) -> bool:
    """One row of a tensor, without its dimension, by an index that is no tensor of torch's."""
    table, slots = input_shape(case, 0), case.inputs or ()
    is_scalar = len(slots) == 3 and slots[1].shape is None and slots[2].shape in (None, (1,))
    return is_scalar and bool(table and table[0]) and agrees(case, 0, table[1:])


def _fits(case: Case) -> bool:
    if _picks_one(case):
        return True
    table = input_shape(case, 0)
    return len(table) == 2 and table[0] > 0 and agrees(case, 0, input_shape(case, 1) + table[1:])


OP = OpSpec(
    kernel="GatherV2",
    call="torch.nn.functional.embedding",
    assumes="rows all over the table, each as likely",
    slots=("table", "indices", "axis"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint("a table of rows is wanted, and an output with a row for each index", _fits),
        inputs_are(INTEGERS, (1,)),
        one_dtype((0,)),
    ),
    npu=NpuCall(run=_run, graph=GraphCall(takes=_picks_one, run=_select)),
    twins=("GatherV2AiCore",),
)
