"""Activation functions and their gradients, gated activations, and dropout."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops.catalog.elementwise._elementwise import declare_gradient, unary
from collector.ops.launching import As, arguments_at, calls
from collector.ops.parts import like
from collector.ops.parts.tensors import swiglu
from collector.ops.slots import elements, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# GELU of each element, with the hyperbolic tangent: torch_npu launches it for any `approximate`.


# x * x * x, its product, the sum, a product, the tangent, 1 more, and two products
GELU = unary(
    "Gelu",
    "torch.nn.functional.gelu",
    "floating",
    reference=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    cost=9,
    lookups=make_lookups("aten.gelu.default", "tensor_cast.gelu.default", order=1),
)
GELU_V2 = unary(
    "GeluV2",
    "torch_npu.npu_gelu",
    "floating",
    reference=lambda torch, x: torch.nn.functional.gelu(x),
    cost=5,  # a quotient, the error function, 1 more, and two products
    lookups=make_lookups("aten.gelu.default", "tensor_cast.gelu.default"),
)


# An approximation of GELU, x * sigmoid(1.702 * x), and its gradient.
_FAST = 1.702
FAST_GELU = unary(
    "FastGelu",
    "torch_npu.fast_gelu",
    "floating",
    reference=lambda torch, x: x * torch.sigmoid(_FAST * x),
    cost=6,
)


def _fast_gelu_grad(torch: Any, dy: Any, x: Any) -> Any:
    s = torch.sigmoid(_FAST * x)
    return dy * s * (1 + _FAST * x * (1 - s))


FAST_GELU_GRAD = declare_gradient(
    "FastGeluGrad",
    "torch.ops.npu.npu_fast_gelu_backward",
    ("dy", "x"),
    reference=_fast_gelu_grad,
    cost=11,
    launched_by=calls("aclnnFastGeluBackward"),
)
RELU = unary("Relu", "torch.relu", "number", lookups=make_lookups("aten.relu.default"))

# Gradient of ReLU: the gradient of the output if the element is positive, else 0.
RELU_GRAD = declare_gradient(
    "ReluGrad",
    "torch.ops.aten.threshold_backward",
    ("gradients", "features"),
    cost=1,
    npu=NpuCall(run=lambda threshold_backward, *both: threshold_backward(*both, 0)),
    launched_by=calls("aclnnThresholdBackward"),
)
SIGMOID = unary(
    "Sigmoid",
    "torch.sigmoid",
    "floating",
    cost=4,
    lookups=make_lookups("aten.sigmoid.default"),
)

# 4 operations for the sigmoid, 4 for dy * s * (1 + x * (1 - s)) with a reused difference
SILU_GRAD = declare_gradient(
    "SiluGrad",
    "torch.ops.aten.silu_backward",
    ("dy", "x"),
    cost=8,
    launched_by=calls("aclnnSiluBackward"),
)
SWISH = unary(
    "Swish",
    "torch.nn.functional.silu",
    "floating",
    cost=4,
    lookups=make_lookups("aten.silu.default", "tensor_cast.silu.default"),
    launched_by=calls("aclnnSilu"),
)
TANH = unary("Tanh", "torch.tanh", "floating", lookups=make_lookups("aten.tanh.default"))


# A gate and a value, the halves of the last dimension: silu(gate) * value.
SWI_GLU = OpSpec(
    kernel="SwiGlu",
    call="torch_npu.npu_swiglu",
    signature="x T:floating[*rows, n] -> y T[*rows, n // 2] where n % 2 == 0",
    reference=swiglu,
    # per output: exp, sum, quotient and product for silu, then a product
    operations="5 * rows * n // 2",
    lookups=make_lookups("tensor_cast.swiglu.default", joins=True),
)


def _swi_glu_grad_reference(torch: Any, dy: Any, x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    dgate = torch.ops.aten.silu_backward(dy * value, gate)
    dvalue = torch.nn.functional.silu(gate).mul_(dy)
    return torch.cat((dgate, dvalue), -1)


# Gradient of SwiGlu with respect to both halves of its input.
SWI_GLU_GRAD = OpSpec(
    kernel="SwiGluGrad",
    call="torch_npu.npu_swiglu_backward",
    signature="dy T:floating[*rows, d], x T[*rows, 2 * d] -> dx T[*rows, 2 * d]",
    reference=_swi_glu_grad_reference,
    # s = sigmoid(gate) is 3, gate * s and its product with dy are 2, and dy * value * s * (1 +
    # gate * (1 - s)) is another 6
    operations="11 * rows * d",
)


_DROPPED = 0.5


def _build(case: Case, make: TensorMaker) -> Call:
    x, mask, _ = case.inputs or ()
    bits = like.integers(mask, make, 0, 256)
    return Call(like.normal(x, make), bits, _DROPPED)


def _drop_out_reference(torch: Any, x: Any, mask: Any, dropped: float) -> Any:
    bits = mask.unsqueeze(-1).bitwise_right_shift(torch.arange(8, device=mask.device)) & 1
    return x * bits.view(-1)[: x.numel()].view(x.shape) / (1 - dropped)


_SEED, _OFFSET = 1, 3


def _bits_build_for_npu(case: Case, make: TensorMaker) -> Call:
    _, _, share, *_ = case.inputs or ()
    bits, seed, offset = [8 * elements(output_shape(case))], 1, 0
    return Call(make.empty((), share.dtype), bits, _DROPPED, seed, offset)


# Random bits, the first half of a dropout. `count` has the number of bits, which is that of the
# output in whole bytes. Profiles from 2024 on have N/A as inputs: such rows are not replayed.
DSA_GEN_BIT_MASK = OpSpec(
    kernel="DSAGenBitMask",
    twins=("DSAStatelessGenBitMask",),
    call="torch.ops.npu._npu_dropout_gen_mask",
    signature="count[#], seed[#], dropout float[#], offset? -> bits UINT8[n] where n % 16 == 0",
    packed={_SEED: "UINT64", _OFFSET: "UINT64"},
    reference=lambda torch, out: out.random_(0, 256),
    build=lambda case, make: Call(like.empty(output_slot(case), make)),
    npu=NpuCall(build=_bits_build_for_npu),
    constraints=(
        Constraint("expected the output's shape", lambda case: output_slot(case) is not None),
    ),
    launched_by=dict.fromkeys(
        ("aclnnDropoutGenMask", "aclnnDropoutGenMaskV2"), arguments_at(outputs=-1, unknown="inputs")
    ),
)

# Numbers that a mask of bits keeps, divided by the share that is kept: the second half of a
# dropout, and its gradient.
DROP_OUT_DO_MASK = OpSpec(
    kernel="DropOutDoMask",
    call="torch_npu.npu_dropout_backward",
    # one bit per number, in whole blocks of 16 bytes (DropoutGenMaskV2 of CANN's ops-nn)
    signature="x T:floating[*s], mask UINT8[align(ceil_div(s, 8), 16)], keep_prob floating[#]"
    " -> y T[*s]",
    reference=_drop_out_reference,
    build=_build,
    operations="2 * s",
    launched_by={"aclnnDropoutDoMask": arguments_at(outputs=2)},
    shown={"keep_prob": As.ONE_NUMBER},
)
