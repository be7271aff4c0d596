"""Operators that fold some dimensions of a tensor into one number for each of the others."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.slots import Shape, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, call_plainly


def reduction(
    kernel: str,
    call: str,
    reference: Callable[..., Any],
    *,
    constraints: tuple[Constraint, ...] = (),
    run: Callable[..., Any] = call_plainly,
) -> OpSpec:
    """`reference` and the function take (x, dimensions, whether they stay as 1)."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x", "axes"),
        reference=reference,
        build=_build,
        flops=lambda case: elements(input_shape(case, 0)),
        constraints=(
            Constraint(
                "an output is wanted that as many dimensions as there are axes fold into",
                lambda case: folded(case) is not None,
            ),
            Constraint("an empty input folds into nothing", lambda case: _is_full(case)),
            inputs_are(("INT32", "INT64"), (1,)),
            one_dtype((0,)),
            *constraints,
        ),
        npu=NpuCall(run=run),
    )


def truth(
    kernel: str, call: str, reference: Callable[..., Any], constraints: tuple[Constraint, ...]
) -> OpSpec:
    """A reduction of truth values: along one dimension, or all into a scalar. torch folds several
    others one after another, a kernel for each."""
    rule = Constraint("one axis is wanted, or all of them and a scalar", _is_one_or_all)
    return reduction(kernel, call, reference, constraints=(*constraints, rule), run=fold_one_or_all)


def fold_one_or_all(fold: Callable[..., Any], x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """The function along one dimension, or of the whole tensor."""
    return fold(x, dims[0], stays) if len(dims) == 1 else fold(x)


def folded(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """The dimensions that the kernel folds, and whether they stay as 1: a row names only how many
    there are. Where several would do, the last ones; None where none do."""
    x, out = input_shape(case, 0), output_shape(case)
    count = _count(input_shape(case, 1))
    for dims in sorted(combinations(range(len(x)), count), reverse=True):
        for stays in (False, True):
            if out == _without(x, dims, stays):
                return dims, stays
    return None


def _count(axes: Shape) -> int:
    """How many axes a tensor of them holds; more than any tensor has where it is no list."""
    return 1 if axes == () else axes[0] if len(axes) == 1 and axes[0] > 0 else 99


def _is_one_or_all(case: Case) -> bool:
    dims, stays = folded(case) or ((), False)
    return len(dims) == 1 or (len(dims) == len(input_shape(case, 0)) and not stays)


def _without(x: Shape, dims: tuple[int, ...], stays: bool) -> Shape:
    sizes = ((1 if i in dims else size) for i, size in enumerate(x) if stays or i not in dims)
    return tuple(sizes)


def _is_full(case: Case) -> bool:
    return elements(input_shape(case, 0)) > 0


def _build(case: Case, make: TensorMaker) -> Call:
    slot = (case.inputs or ())[0]
    return Call((make.normal(slot.shape or (), slot.dtype), *(folded(case) or ())))
