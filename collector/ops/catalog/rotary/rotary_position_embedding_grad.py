"""Gradient of rotary positions: of x; and of cos and sin where the row names x itself."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._full_width import FOUR_DIMENSIONS, POSITIONS_FIT
from collector.ops.dtypes import floating, one_dtype
from collector.ops.parts.rotation import make_positions, rotate
from collector.ops.slots import agrees, elements, given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X = 3
_DCOS, _DSIN = 1, 2


def _build(case: Case, make: TensorMaker) -> Call:
    dy, cos, *_ = case.inputs or ()
    x = given(case, _X)
    return Call(
        (
            make.normal(dy.shape or (), dy.dtype),
            *make_positions(make, cos.shape or (), cos.dtype),
            *([make.normal(x.shape or (), x.dtype)] if x else []),
        )
    )


def _npu_build(case: Case, make: TensorMaker) -> Call:
    """The kernel gets x, and gives the gradients of cos and sin, only where these want one."""
    call = _build(case, make)
    dy, cos, sin, *x = call.args
    if x:
        cos.requires_grad_()
        sin.requires_grad_()
    return Call((dy, *(x or [dy]), cos, sin))


def _npu_run(api: Any, dy: Any, x: Any, cos: Any, sin: Any) -> Any:
    dx, dcos, dsin = api(dy, x, cos, sin)
    return (dx, dcos, dsin) if cos.requires_grad else (dx, None, None)


def _reference(torch: Any, dy: Any, cos: Any, sin: Any, x: Any = None) -> Any:
    a, b = (dy * sin).chunk(2, -1)
    dx = torch.cat((b, -a), -1).addcmul_(dy, cos)
    if x is None:
        return dx, None, None
    return dx, (dy * x).sum_to_size(cos.shape), (dy * rotate(torch, x)).sum_to_size(sin.shape)


def _flops(case: Case) -> int:
    """An element: two products and a sum; and two of each for cos and sin."""
    return (7 if given(case, _X) else 3) * elements(input_shape(case, 0))


def _outputs_fit(case: Case) -> bool:
    if given(case, _X) is None:
        outputs = [output_slot(case, i) for i in (_DCOS, _DSIN)]
        return all(slot is None or slot.shape is None for slot in outputs)
    return agrees(case, _DCOS, input_shape(case, 1)) and agrees(case, _DSIN, input_shape(case, 2))


OP = OpSpec(
    kernel="RotaryPositionEmbeddingGrad",
    call="torch_npu.npu_rotary_mul_backward",
    slots=("dy", "cos", "sin", "x"),
    optional=frozenset({_X}),
    optional_outputs=frozenset({_DCOS, _DSIN}),
    reference=_reference,
    build=_build,
    npu=NpuCall(run=_npu_run, build=_npu_build),
    flops=_flops,
    traffic=lambda case: dense_bytes(case, frozenset({_X}), frozenset({_DCOS, _DSIN})),
    constraints=(
        POSITIONS_FIT,
        floating((0,)),
        one_dtype((0, 1, 2, _X), (0, _DCOS, _DSIN)),
        Constraint(
            "x wants the shape of dy",
            lambda case: given(case, _X) is None or input_shape(case, _X) == input_shape(case, 0),
        ),
        Constraint(
            "the first output wants the shape of dy",
            lambda case: agrees(case, 0, input_shape(case, 0)),
        ),
        Constraint("gradients of cos and sin, in their shapes, only beside x", _outputs_fit),
        FOUR_DIMENSIONS,
    ),
)
