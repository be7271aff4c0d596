"""Where the greatest element of each row is: greedy sampling. A profile does not tell the
dimension: the last one here."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rowwise._indices import narrowed
from collector.ops.dtypes import inputs_are, not_bool, outputs_are
from collector.ops.slots import elements, input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_DIMENSION = 1


def _build(case: Case, make: TensorMaker) -> Call:
    x, indices = (case.inputs or ())[0], output_slot(case)
    stays = output_shape(case) == _folded(case, stays=True)
    dtype = make.dtype(indices.dtype if indices else "INT64")
    return Call((make.normal(x.shape or (), x.dtype), stays, dtype))


def _reference(torch: Any, x: Any, stays: bool, dtype: Any) -> Any:
    return torch.argmax(x, -1, stays).to(dtype)


def _run(argmax: Any, x: Any, stays: bool, dtype: Any) -> Any:
    """One ArgMaxV2, and a Cast that aclnn adds to give INT64."""
    return narrowed(argmax(x, -1, stays), dtype)


def _folded(case: Case, stays: bool) -> tuple[int, ...]:
    return input_shape(case, 0)[:-1] + ((1,) if stays else ())


def _fits(case: Case) -> bool:
    x, out = input_shape(case, 0), output_shape(case)
    fitting = (None, _folded(case, stays=False), _folded(case, stays=True))
    return len(x) > 0 and elements(x) > 0 and out in fitting


OP = OpSpec(
    kernel="ArgMaxV2",
    call="torch.argmax",
    assumes="numbers at random",
    slots=("x", "dimension"),
    optional=frozenset({_DIMENSION}),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    constraints=(
        Constraint("an output is wanted with one number for each row of the input", _fits),
        Constraint("dimension wants a scalar", lambda c: input_shape(c, _DIMENSION) in ((), (1,))),
        inputs_are(("INT32", "INT64"), (_DIMENSION,)),
        outputs_are(("INT32", "INT64"), (0,)),
        not_bool((0,)),
    ),
    npu=NpuCall(run=_run),
)
