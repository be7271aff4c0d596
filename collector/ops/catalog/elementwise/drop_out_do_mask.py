"""Numbers that a mask of bits keeps, divided by the share that is kept: the second half of a
dropout, and its gradient."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, inputs_are, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_X, _MASK, _KEPT = range(3)
_DROPPED = 0.5
_BYTES = 16  # a mask is made of whole blocks of so many (DropoutGenMaskV2 of CANN's ops-nn)


def _build(case: Case, make: TensorMaker) -> Call:
    x, mask, _ = case.inputs or ()
    bits = make.integers(mask.shape or (), mask.dtype, 0, 256)
    return Call((make.normal(x.shape or (), x.dtype), bits, _DROPPED))


def _reference(torch: Any, x: Any, mask: Any, dropped: float) -> Any:
    bits = mask.unsqueeze(-1).bitwise_right_shift(torch.arange(8, device=mask.device)) & 1
    return x * bits.view(-1)[: x.numel()].view(x.shape) / (1 - dropped)


def _mask_fits(case: Case) -> bool:
    """A bit for each number, rounded up."""
    blocks = -(-elements(input_shape(case, _X)) // (8 * _BYTES))
    return input_shape(case, _MASK) == (blocks * _BYTES,)


OP = OpSpec(
    kernel="DropOutDoMask",
    call="torch_npu.npu_dropout_backward",
    slots=("x", "mask", "keep_prob"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(input_shape(case, _X)),
    constraints=(
        floating((_X, _KEPT)),
        inputs_are(("UINT8",), (_MASK,)),
        one_dtype((_X,)),
        Constraint(
            "the output wants the input's shape",
            lambda case: agrees(case, 0, input_shape(case, _X)),
        ),
        Constraint("a mask of a bit a number is wanted, in whole blocks of 16 bytes", _mask_fits),
        Constraint(
            "one number is wanted for the share that is kept",
            lambda case: elements(input_shape(case, _KEPT)) == 1,
        ),
    ),
)
