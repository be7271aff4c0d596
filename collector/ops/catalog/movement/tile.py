"""A tensor repeated along its dimensions, or along new ones in front."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension
from collector.ops.slots import Shape, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _multiples(case: Case) -> Shape | None:
    """How often each dimension of the output repeats the input; None where it does not."""
    x, out = input_shape(case, 0), output_shape(case) or ()
    if len(out) < len(x) or not elements(out) > elements(x) > 0:
        return None
    sizes = (1,) * (len(out) - len(x)) + x
    if any(whole % size for whole, size in zip(out, sizes, strict=True)):
        return None
    return tuple(whole // size for whole, size in zip(out, sizes, strict=True))


def _build(case: Case, make: TensorMaker) -> Call:
    x = (case.inputs or ())[0]
    return Call((make.normal(x.shape or (), x.dtype), _multiples(case)))


def _reference(torch: Any, x: Any, multiples: Any) -> Any:
    return x.repeat(multiples)


OP = OpSpec(
    kernel="Tile",
    call="torch.Tensor.repeat",
    slots=("x", "multiples"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "a larger output is wanted that repeats the input",
            lambda case: _multiples(case) is not None,
        ),
        one_a_dimension(1, of_output=True),
        one_dtype((0,)),
    ),
)
