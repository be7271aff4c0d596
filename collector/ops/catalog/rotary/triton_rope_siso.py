"""Rotary positions of one tensor in place, with cos and sin for each token.

vLLM-Ascend has no operator for it: its sparse attention calls the Python function.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._tables import turn
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.rotation import make_positions
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import elements, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    x, cos, _ = case.inputs or ()
    positions = make_positions(make, cos.shape or (), cos.dtype)
    size = input_shape(case, 1)[1]
    return Call((make.normal(x.shape or (), x.dtype), *positions), {"rope_dim": size})


def _reference(torch: Any, x: Any, cos: Any, sin: Any, *, rope_dim: int) -> Any:
    """Of cos and sin the kernel reads the first half alone."""
    half = rope_dim // 2
    return turn(torch, x, cos[:, None, :half], sin[:, None, :half])


def _traffic(case: Case) -> int:
    x, cos, _ = case.inputs or ()
    return 2 * x.size_bytes + cos.size_bytes


def _fits(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    if len(x) != 3 or len(cos) != 2 or cos != sin or cos[1] % 2:
        return False
    return cos[0] == x[0] and cos[1] <= x[2] and outputs_agree(case, x)


OP = OpSpec(
    kernel="_triton_rope_siso",
    call="vllm_ascend.ops.triton.rope.rope_forward_triton_siso",
    slots=("x", "cos", "sin"),
    reference=_reference,
    build=_build,
    flops=lambda case: 3 * elements(input_shape(case, 0)),
    traffic=_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("x (T,N,D) is wanted, and cos and sin (T, D or less, even)", _fits),
        nothing_empty(),
        inputs_are(FLOATS, (0, 1)),
        one_dtype((0,), (0,)),
        one_dtype((1, 2), ()),
    ),
)
