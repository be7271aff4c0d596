"""Gradient of an embedding's table: the gradient of each looked-up row, added where it belongs.

On an NPU the rows' numbers are sorted, and the table cleared, by kernels beside this one.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import place
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _gradient_and_rows(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    """The gradient of each lookup, and the numbers of the rows that were looked up."""
    grad, rows, _ = case.inputs or ()
    table_rows = (output_shape(case) or (1,))[0]
    return make.normal(grad.shape or (), grad.dtype), make.integers(
        (rows.numel,), rows.dtype, 0, table_rows
    )


def _build(case: Case, make: TensorMaker) -> Call:
    """The numbers sorted, as the kernel wants them, and from which row of `grad` each came."""
    grad, rows = _gradient_and_rows(case, make)
    ordered = rows.long().sort()  # index_fill_ takes no other integers
    return Call(
        (
            grad.view(rows.numel(), -1),
            ordered.values,
            ordered.indices,
            place((case.outputs or ())[0], make).zero_(),
        )
    )


def _build_npu(case: Case, make: TensorMaker) -> Call:
    """No row is left out as padding, none scaled by how often it was looked up."""
    grad, rows = _gradient_and_rows(case, make)
    table_rows = (output_shape(case) or (1,))[0]
    return Call((grad, rows.view(grad.shape[:-1]), table_rows, -1, False))


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
        and grad[-1:] == table[1:]
        and elements(grad[:-1]) == count
    )


def _traffic(case: Case) -> int:
    """All inputs once, and a row written for each of `grad`'s."""
    slots = case.inputs or ()
    return sum(slot.size_bytes for slot in slots) + slots[0].size_bytes


OP = OpSpec(
    kernel="EmbeddingDenseGradV2",
    call="torch.ops.aten.embedding_dense_backward",
    assumes="rows all over the table, each as likely, so that some come often",
    slots=("grad", "sorted_rows", "origins"),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    traffic=_traffic,
    constraints=(
        Constraint("a row number and an origin are wanted for each row of the gradient", _fits),
        inputs_are(INTEGERS, (1, 2)),
        one_dtype((0,)),
    ),
    npu=NpuCall(build=_build_npu),
)
