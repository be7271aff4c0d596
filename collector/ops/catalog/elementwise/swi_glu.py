"""A gate and a value, the halves of the last dimension: silu(gate) * value."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


def _reference(torch: Any, x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    return torch.nn.functional.silu(gate).mul_(value)


def _flops(case: Case) -> int:
    """An element of the output: exp, sum, quotient and product for silu, then a product."""
    return 5 * elements(input_shape(case, 0)) // 2


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and x[-1] % 2 == 0 and agrees(case, 0, (*x[:-1], x[-1] // 2))


OP = OpSpec(
    kernel="SwiGlu",
    call="torch_npu.npu_swiglu",
    slots=("x",),
    reference=_reference,
    flops=_flops,
    constraints=(
        Constraint("an even last dimension is wanted, and half of it out", _fits),
        floating((0,)),
        one_dtype((0,)),
    ),
)
