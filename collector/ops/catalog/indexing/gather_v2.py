"""Rows of a table, looked up by number along the first dimension: an embedding."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, picked_bytes
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """Indices all over the table: a lookup of few rows would live in the cache."""
    table, indices, *_ = case.inputs or ()
    rows = input_shape(case, 0)[0]
    return Call(
        (
            make.normal(table.shape or (), table.dtype),
            make.integers(indices.shape or (), indices.dtype, 0, rows),
        )
    )


def _reference(torch: Any, table: Any, indices: Any) -> Any:
    return torch.embedding(table, indices)


def _run(api: Any, table: Any, indices: Any) -> Any:
    return api(indices, table)


def _fits(case: Case) -> bool:
    table = input_shape(case, 0)
    return len(table) == 2 and table[0] > 0 and agrees(case, 0, input_shape(case, 1) + table[1:])


OP = OpSpec(
    kernel="GatherV2",
    call="torch.nn.functional.embedding",
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
    npu=NpuCall(run=_run),
    twins=("GatherV2AiCore",),
)
