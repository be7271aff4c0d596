"""Each row of a tensor as often as a list says, along the one dimension in which the output
differs: from sequences to tokens. RepeatInterleaveV2 where that is a dimension of several."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, not_bool, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_REPEATS = 1


def _dim(case: Case) -> int | None:
    """The first dimension along which the repeats may make the output of the input."""
    x, out, repeats = input_shape(case, 0), output_shape(case), input_shape(case, _REPEATS)
    if out is None or len(out) != len(x) or len(repeats) != 1:
        return None
    for dim, (size, total) in enumerate(zip(x, out, strict=True)):
        others_agree = x[:dim] + x[dim + 1 :] == out[:dim] + out[dim + 1 :]
        if others_agree and total != size and _makes(size, total, repeats[0]):
            return dim
    return None


def _makes(size: int, total: int, repeats: int) -> bool:
    """A number for each row makes any total, one number for all of them a multiple."""
    return size > 0 and (repeats == size or (repeats == 1 and total % size == 0))


def _build(case: Case, make: TensorMaker) -> Call:
    """As equal repeats as the total allows; torch is told the total, so that it need not wait."""
    (x, repeats), (dim, out) = case.inputs or (), (_dim(case) or 0, output_shape(case) or ())
    (count,) = input_shape(case, _REPEATS)
    rows = out[dim] * count // input_shape(case, 0)[dim]
    numbers = make.full((count,), repeats.dtype, rows // count)
    numbers[: rows % count] += 1
    return Call((make.normal(x.shape or (), x.dtype), numbers, dim, out[dim]))


def _run(repeat: Any, x: Any, repeats: Any, dim: int, total: int) -> Any:
    if x.dim() == 1:
        return repeat(x, repeats, output_size=total)
    return repeat(x, repeats, dim=dim, output_size=total)


def _reference(torch: Any, x: Any, repeats: Any, dim: int, total: int) -> Any:
    return _run(torch.repeat_interleave, x, repeats, dim, total)


OP = OpSpec(
    kernel="RepeatInterleave",
    call="torch.repeat_interleave",
    assumes="each row as often",
    slots=("x", "repeats"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "an output is wanted that repeats make of the input along one dimension",
            lambda case: _dim(case) is not None,
        ),
        inputs_are(("INT32", "INT64"), (_REPEATS,)),
        one_dtype((0,)),
        not_bool((0,)),
    ),
    npu=NpuCall(run=_run),
    twins=("RepeatInterleaveV2",),
)
