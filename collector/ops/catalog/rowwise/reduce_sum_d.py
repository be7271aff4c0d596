"""Sum over dimensions that are built into the kernel. Graphs alone launch it: where all sizes are
constants CANN makes it of a ReduceSum (its pass ConstToAttrReduceSumFusion)."""

from itertools import combinations
from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.slots import Shape, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def _folded(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """The dimensions that are summed, and whether they stay as 1. Of several that would do, as of
    equal sizes, the last ones; None where none do."""
    x, out = input_shape(case, 0), output_shape(case)
    if out is None or len(out) > len(x):
        return None
    if len(out) == len(x):
        dims = tuple(i for i, size in enumerate(x) if size != out[i])
        return (dims, True) if dims and all(out[i] == 1 for i in dims) else None
    fits = (d for d in combinations(range(len(x)), len(x) - len(out)) if _left(x, d) == out)
    dims = max(fits, default=())
    return (dims, False) if dims else None


def _left(x: Shape, dims: tuple[int, ...]) -> Shape:
    return tuple(size for i, size in enumerate(x) if i not in dims)


def _build(case: Case, make: TensorMaker) -> Call:
    (x, *_), folded = case.inputs or (), _folded(case) or ((), False)
    return Call((make.normal(x.shape or (), x.dtype), *folded))


def _reference(torch: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    return _run(torch.sum, x, dims, stays)


def _run(add_up: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    return add_up(x, dims, stays)


OP = OpSpec(
    kernel="ReduceSumD",
    call="torch.sum",
    assumes="of equal dimensions the last ones are summed",
    slots=("x",),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (0,)),
        one_dtype((0,)),
        Constraint(
            "an output is wanted that some dimensions of the input fold into",
            lambda case: _folded(case) is not None,
        ),
        Constraint("an empty input folds into nothing", lambda c: elements(input_shape(c, 0)) > 0),
        Constraint(
            "OP State static is wanted: graphs of other sizes launch ReduceSum",
            lambda case: case.op_state == "static",
        ),
    ),
    npu=NpuCall(run=_run, graph=GraphCall(takes=lambda case: True, run=_run)),
)
