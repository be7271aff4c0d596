"""x * factor + y, as an MoE layer adds its routed and its shared experts."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import elements, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_FACTOR = 2.5  # DeepSeek-V3's; a profile does not tell


def _build(case: Case, make: TensorMaker) -> Call:
    tensors = [make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ()]
    return Call((*tensors, _FACTOR))


def _reference(torch: Any, x: Any, y: Any, factor: float) -> Any:
    return torch.add(y, x, alpha=factor)


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and input_shape(case, 1) == x and outputs_agree(case, x)


OP = OpSpec(
    kernel="muls_add_kernel",
    call="torch.ops.vllm.muls_add",
    slots=("x", "y"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(input_shape(case, 0)),
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("two tensors of one shape are wanted, which the output has too", _fits),
        nothing_empty(),
        inputs_are(FLOATS, (0,)),
        one_dtype((0, 1)),
    ),
)
