"""Rotary positions, half mode: x * cos + rotate(x) * sin, with cos and sin for each position."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._full_width import FOUR_DIMENSIONS, POSITIONS_FIT, build
from collector.ops.dtypes import floating, one_dtype
from collector.ops.parts.rotation import rotate
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


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
    build=build,
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
