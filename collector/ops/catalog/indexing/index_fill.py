"""Rows of a tensor set to one value, in place. A profile tells neither the dimension nor the
value: the first, and 0."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.parts.positions import distinct
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _call(case: Case, make: TensorMaker, index_dtype: str) -> Call:
    x, index = (case.inputs or ())[:2]
    rows = distinct(make, index.numel, input_shape(case, 0)[0], index_dtype)
    return Call((make.normal(x.shape or (), x.dtype), 0, rows, 0))


def _build(case: Case, make: TensorMaker) -> Call:
    return _call(case, make, "INT64")  # a cpu takes no other


def _build_npu(case: Case, make: TensorMaker) -> Call:
    return _call(case, make, (case.inputs or ())[1].dtype)


def _reference(torch: Any, x: Any, dim: int, index: Any, value: float) -> Any:
    return x.index_fill_(dim, index, value)


def _traffic(case: Case) -> int:
    """The index and the value are read, the rows written."""
    x, *others = case.inputs or ()
    rows = (case.inputs or ())[1].numel * elements(input_shape(case, 0)[1:])
    written = x.known_dtype.bytes_of(rows) if x.known_dtype else 0
    return sum(slot.size_bytes for slot in others) + written


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and x[0] > 0 and len(input_shape(case, 1)) == 1 and agrees(case, 0, x)


OP = OpSpec(
    kernel="IndexFill",
    call="torch.Tensor.index_fill_",
    assumes="the first dimension; rows all over it, each once",
    slots=("x", "index", "value"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=_traffic,
    moves_data=True,
    constraints=(
        Constraint("rows are wanted, a list of their numbers, and an output like the input", _fits),
        inputs_are(INTEGERS, (1,)),
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16", "INT32", "INT64", "BOOL"), (0,)),
        one_dtype((0,)),
    ),
    npu=NpuCall(build=_build_npu),
)
