"""Gradient of an embedding's table: the gradient of each looked-up row, added where it belongs."""

from typing import Any

from collector.case import Case
from collector.ops.catalog._copy import place
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """Row numbers sorted, as the kernel wants them, and from which row of `grad` each came."""
    grad, rows, _ = case.inputs or ()
    table = (case.outputs or ())[0]
    count = rows.numel
    numbers = make.integers((count,), rows.dtype, 0, (table.shape or (1,))[0])
    return Call(
        (
            make.normal((count, grad.numel // count), grad.dtype),
            numbers.long().sort().values,  # index_fill_ takes no other
            make.permutation(count, "INT64"),
            place(table, make).zero_(),
        )
    )


def _reference(torch: Any, grad: Any, rows: Any, origins: Any, table: Any) -> Any:
    # Only the rows named are cleared: the kernel too leaves the rest of the table alone.
    return table.index_fill_(0, rows, 0).index_add_(0, rows, grad[origins])


def _fits(case: Case) -> bool:
    grad, rows, table = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    count = elements(rows)
    return (
        table is not None
        and len(table) == 2
        and table[0] > 0 < count
        and input_shape(case, 2) == rows
        and elements(grad) == count * table[1]
    )


def _traffic(case: Case) -> int:
    """All inputs once, and a row written for each of `grad`'s."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in slots) + slots[0].size_bytes


OP = OpSpec(
    kernel="EmbeddingDenseGradV2",
    call="torch.ops.aten.embedding_dense_backward",
    slots=("grad", "sorted_rows", "origins"),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    traffic=_traffic,
    constraints=(
        Constraint("a row number and an origin are wanted for each row of the gradient", _fits),
        inputs_are(("INT32", "INT64"), (1, 2)),
        one_dtype((0,)),
    ),
)
