"""Rotary positions, half mode: x * cos + rotate(x) * sin, with cos and sin for each position."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._rules import FOUR_DIMENSIONS, POSITIONS_FIT
from collector.ops.dtypes import floating, one_dtype
from collector.ops.parts.rotation import make_positions, rotate
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    x, cos, _ = case.inputs or ()
    positions = make_positions(make, cos.shape or (), cos.dtype)
    return Call((make.normal(x.shape or (), x.dtype), *positions))


def _reference(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    return (x * cos).addcmul_(rotate(torch, x), sin)


def _flops(case: Case) -> int:
    """An element: two products and a sum."""
    return 3 * elements(input_shape(case, 0))


OP = OpSpec(
    kernel="RotaryPositionEmbedding",
    call="torch_npu.npu_rotary_mul",
    slots=("x", "cos", "sin"),
    reference=_reference,
    build=_build,
    flops=_flops,
    constraints=(
        POSITIONS_FIT,
        FOUR_DIMENSIONS,
        floating((0,)),
        one_dtype((0, 1, 2)),
        Constraint(
            "the output wants the shape of x", lambda case: agrees(case, 0, input_shape(case, 0))
        ),
    ),
)
