"""Gradient of SwiGlu with respect to both halves of its input."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


def _reference(torch: Any, dy: Any, x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    dgate = torch.ops.aten.silu_backward(dy * value, gate)
    dvalue = torch.nn.functional.silu(gate).mul_(dy)
    return torch.cat((dgate, dvalue), -1)


def _flops(case: Case) -> int:
    """An element of dy: s = sigmoid(gate) is 3, gate * s and its product with dy 2, and
    dy * value * s * (1 + gate * (1 - s)) another 6."""
    return 11 * elements(input_shape(case, 0))


def _fits(case: Case) -> bool:
    dy, x = input_shape(case, 0), input_shape(case, 1)
    return bool(dy) and x == (*dy[:-1], 2 * dy[-1])


OP = OpSpec(
    kernel="SwiGluGrad",
    call="torch_npu.npu_swiglu_backward",
    slots=("dy", "x"),
    reference=_reference,
    flops=_flops,
    constraints=(
        floating((0, 1)),
        one_dtype((0, 1)),
        Constraint("x wants twice the last dimension of dy", _fits),
        Constraint(
            "the output wants the shape of x", lambda case: agrees(case, 0, input_shape(case, 1))
        ),
    ),
)
