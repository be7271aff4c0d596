"""Rotary positions of pairs side by side; the result has their halves one after the other."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._full_width import build
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.rotation import halves_first, rotate
from collector.ops.parts.serving import HALVES, nothing_empty, outputs_agree
from collector.ops.slots import elements, input_shape
from collector.ops.spec import Constraint, OpSpec

_SIZE = 64  # the only one that the kernel knows


def _reference(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    halves = halves_first(x)
    return (halves * cos).addcmul_(rotate(torch, halves), sin)


def _fits(case: Case) -> bool:
    """(B,N,S,64) with positions (B,1,S,64) or (B,1,1,64)."""
    x, cos, sin = (input_shape(case, i) for i in range(3))
    if len(x) != 4 or x[3] != _SIZE or cos != sin or not outputs_agree(case, x):
        return False
    return cos in ((x[0], 1, x[2], _SIZE), (x[0], 1, 1, _SIZE))


OP = OpSpec(
    kernel="InterleaveRope",
    call="torch_npu.npu_interleave_rope",
    slots=("x", "cos", "sin"),
    reference=_reference,
    build=build,
    flops=lambda case: 3 * elements(input_shape(case, 0)),
    constraints=(
        Constraint("x (B,N,S,64) is wanted, and cos and sin (B,1,S,64) or (B,1,1,64)", _fits),
        nothing_empty(),
        inputs_are(HALVES, (0,)),
        one_dtype((0, 1, 2)),
    ),
)
