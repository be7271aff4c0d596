"""Rotations whose cos and sin are as wide as x: their tensors, and which shapes fit."""

from collector.case import Case
from collector.ops.parts.rotation import make_positions
from collector.ops.slots import broadcast, input_shape
from collector.ops.spec import Call, Constraint, TensorMaker


def build(case: Case, make: TensorMaker) -> Call:
    """x, cos and sin."""
    x, cos, _ = case.inputs or ()
    positions = make_positions(make, cos.shape or (), cos.dtype)
    return Call((make.normal(x.shape or (), x.dtype), *positions))


def _positions_fit(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    halves = bool(x) and x[-1] % 2 == 0 and cos[-1:] == x[-1:]
    return halves and cos == sin and broadcast(x, cos) == x


POSITIONS_FIT = Constraint(
    "an even last dimension is wanted, and cos and sin that broadcast to it",
    _positions_fit,
)
# npu_rotary_mul's own rules, where it does not compile (jit_compile=False).
_MOST = 896
FOUR_DIMENSIONS = Constraint(
    f"4 dimensions are wanted, the last one below {_MOST}",
    lambda case: len(input_shape(case, 0)) == 4 and input_shape(case, 0)[-1] < _MOST,
)
