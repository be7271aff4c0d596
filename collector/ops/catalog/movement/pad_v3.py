"""A tensor with zeros behind it. A profile does not tell the paddings: at the ends here."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import not_bool, one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """torch names the last dimension's paddings first, each as (front, end)."""
    x, out = (case.inputs or ())[0], output_shape(case) or ()
    added = [whole - size for whole, size in zip(out, input_shape(case, 0), strict=True)]
    paddings = [side for end in reversed(added) for side in (0, end)]
    return Call((make.normal(x.shape or (), x.dtype), paddings))


def _reference(torch: Any, x: Any, paddings: Any) -> Any:
    return torch.nn.functional.pad(x, paddings)


def _fits(case: Case) -> bool:
    """Without anything to add, CANN copies; an empty input it fills."""
    x, out = input_shape(case, 0), output_shape(case)
    return (
        out is not None
        and len(out) == len(x)
        and all(whole >= size for whole, size in zip(out, x, strict=True))
        and elements(out) > elements(x) > 0
    )


OP = OpSpec(
    kernel="PadV3",
    call="torch.nn.functional.pad",
    slots=("x", "paddings", "value"),
    optional=frozenset({2}),
    reference=_reference,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted that holds the input and more", _fits),
        one_a_dimension(1, each=2),
        one_dtype((0,)),
        not_bool((0,)),  # CANN pads it as INT8, between two casts
    ),
    twins=("PadV3AiCore",),
)
