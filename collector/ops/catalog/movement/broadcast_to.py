"""A tensor repeated along dimensions of size 1, or along new ones in front."""

from collector.case import Case
from collector.ops.catalog.movement._copy import build_view, copy
from collector.ops.dtypes import not_bool, one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension
from collector.ops.slots import broadcast, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda x: x.expand(output_shape(case)))


def _fits(case: Case) -> bool:
    x, out = input_shape(case, 0), output_shape(case)
    return out is not None and broadcast(x, out) == out and elements(out) > elements(x)


OP = OpSpec(
    kernel="BroadcastTo",
    call="torch.Tensor.copy_",
    slots=("x", "shape"),
    reference=copy,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("a larger output is wanted to which the input broadcasts", _fits),
        one_a_dimension(1, of_output=True),
        one_dtype((0,)),
        not_bool((0,)),  # CANN broadcasts it as INT32, between two casts
    ),
)
