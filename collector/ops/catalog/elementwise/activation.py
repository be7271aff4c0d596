"""Activation functions and their gradients, gated activations, and dropout."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.catalog.elementwise._elementwise import gradient, unary
from collector.ops.parts import like
from collector.ops.parts.tensors import per_element, swiglu
from collector.ops.slots import agrees, elements, input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# GELU of each element, with the hyperbolic tangent: torch_npu launches it for any `approximate`.


# x * x * x, its product, the sum, a product, the tangent, 1 more, and two products
GELU = unary(
    "Gelu",
    "torch.nn.functional.gelu",
    rules.floating((0,)),
    reference=lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    cost=9,
    lookups=looked_up("aten.gelu.default", "tensor_cast.gelu.default", order=1),
)
GELU_V2 = unary(
    "GeluV2",
    "torch_npu.npu_gelu",
    rules.floating((0,)),
    reference=lambda torch, x: torch.nn.functional.gelu(x),
    cost=5,  # a quotient, the error function, 1 more, and two products
    lookups=looked_up("aten.gelu.default", "tensor_cast.gelu.default"),
)


# An approximation of GELU, x * sigmoid(1.702 * x), and its gradient.
_FAST = 1.702
FAST_GELU = unary(
    "FastGelu",
    "torch_npu.fast_gelu",
    rules.floating((0,)),
    reference=lambda torch, x: x * torch.sigmoid(_FAST * x),
    cost=6,
)


def _fast_gelu_grad(torch: Any, dy: Any, x: Any) -> Any:
    s = torch.sigmoid(_FAST * x)
    return dy * s * (1 + _FAST * x * (1 - s))


FAST_GELU_GRAD = gradient(
    "FastGeluGrad",
    "torch.ops.npu.npu_fast_gelu_backward",
    ("dy", "x"),
    reference=_fast_gelu_grad,
    cost=11,
)
RELU = unary("Relu", "torch.relu", rules.not_bool((0,)), lookups=looked_up("aten.relu.default"))

# Gradient of ReLU: the gradient of the output if the element is positive, else 0.
RELU_GRAD = gradient(
    "ReluGrad",
    "torch.ops.aten.threshold_backward",
    ("gradients", "features"),
    cost=1,
    npu=NpuCall(run=lambda threshold_backward, *both: threshold_backward(*both, 0)),
)
SIGMOID = unary(
    "Sigmoid",
    "torch.sigmoid",
    rules.floating((0,)),
    cost=4,
    lookups=looked_up("aten.sigmoid.default"),
)

# 4 operations for the sigmoid, 4 for dy * s * (1 + x * (1 - s)) with a reused difference
SILU_GRAD = gradient("SiluGrad", "torch.ops.aten.silu_backward", ("dy", "x"), cost=8)
SWISH = unary(
    "Swish",
    "torch.nn.functional.silu",
    rules.floating((0,)),
    cost=4,
    lookups=looked_up("aten.silu.default", "tensor_cast.silu.default"),
)
TANH = unary("Tanh", "torch.tanh", rules.floating((0,)), lookups=looked_up("aten.tanh.default"))


def _swi_glu_fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and x[-1] % 2 == 0 and agrees(case, 0, (*x[:-1], x[-1] // 2))


# A gate and a value, the halves of the last dimension: silu(gate) * value.
SWI_GLU = OpSpec(
    kernel="SwiGlu",
    call="torch_npu.npu_swiglu",
    slots=("x",),
    reference=swiglu,
    # per output: exp, sum, quotient and product for silu, then a product
    flops=lambda case: 5 * elements(input_shape(case, 0)) // 2,
    constraints=(
        Constraint(
            "expected an even last dimension, and an output of half its size", _swi_glu_fits
        ),
        rules.floating((0,)),
        rules.one_dtype((0,)),
    ),
    lookups=looked_up("tensor_cast.swiglu.default", joins=True),
)


def _swi_glu_grad_reference(torch: Any, dy: Any, x: Any) -> Any:
    gate, value = x.chunk(2, -1)
    dgate = torch.ops.aten.silu_backward(dy * value, gate)
    dvalue = torch.nn.functional.silu(gate).mul_(dy)
    return torch.cat((dgate, dvalue), -1)


def _swi_glu_grad_fits(case: Case) -> bool:
    dy, x = input_shape(case, 0), input_shape(case, 1)
    return bool(dy) and x == (*dy[:-1], 2 * dy[-1])


# Gradient of SwiGlu with respect to both halves of its input.
SWI_GLU_GRAD = OpSpec(
    kernel="SwiGluGrad",
    call="torch_npu.npu_swiglu_backward",
    slots=("dy", "x"),
    reference=_swi_glu_grad_reference,
    # s = sigmoid(gate) is 3, gate * s and its product with dy are 2, and dy * value * s * (1 +
    # gate * (1 - s)) is another 6
    flops=per_element(11),
    constraints=(
        rules.floating((0, 1)),
        rules.one_dtype((0, 1)),
        Constraint("expected x with twice the last dimension of dy", _swi_glu_grad_fits),
        Constraint(
            "expected an output of the shape of x",
            lambda case: agrees(case, 0, input_shape(case, 1)),
        ),
    ),
)


_X, _MASK, _KEPT = range(3)
_DROPPED = 0.5
_BYTES = 16  # a mask has whole blocks of this size (DropoutGenMaskV2 of CANN's ops-nn)


def _build(case: Case, make: TensorMaker) -> Call:
    x, mask, _ = case.inputs or ()
    bits = like.integers(mask, make, 0, 256)
    return Call(like.normal(x, make), bits, _DROPPED)


def _drop_out_reference(torch: Any, x: Any, mask: Any, dropped: float) -> Any:
    bits = mask.unsqueeze(-1).bitwise_right_shift(torch.arange(8, device=mask.device)) & 1
    return x * bits.view(-1)[: x.numel()].view(x.shape) / (1 - dropped)


def _mask_fits(case: Case) -> bool:
    """Return whether the mask has one bit per number, rounded up to whole blocks."""
    blocks = -(-elements(input_shape(case, _X)) // (8 * _BYTES))
    return input_shape(case, _MASK) == (blocks * _BYTES,)


_COUNT, _SEED, _SHARE = range(3)


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
    slots=("count", "seed", "dropout", "offset"),
    packed={_SEED: "UINT64", 3: "UINT64"},
    reference=lambda torch, out: out.random_(0, 256),
    build=lambda case, make: Call(like.empty(output_slot(case), make)),
    optional=frozenset({3}),
    npu=NpuCall(build=_bits_build_for_npu),
    constraints=(
        rules.one_number("count, seed and dropout", _COUNT, _SEED, _SHARE),
        rules.inputs_are(rules.FLOATS, (_SHARE,)),
        rules.outputs_are(("UINT8",), (0,)),
        Constraint(
            "expected an output in whole blocks of 16 bytes",
            lambda case: len(size := output_shape(case) or ()) == 1 and not size[0] % _BYTES,
        ),
    ),
)

# Numbers that a mask of bits keeps, divided by the share that is kept: the second half of a
# dropout, and its gradient.
DROP_OUT_DO_MASK = OpSpec(
    kernel="DropOutDoMask",
    call="torch_npu.npu_dropout_backward",
    slots=("x", "mask", "keep_prob"),
    reference=_drop_out_reference,
    build=_build,
    flops=per_element(2, _X),
    constraints=(
        rules.floating((_X, _KEPT)),
        rules.inputs_are(("UINT8",), (_MASK,)),
        rules.one_dtype((_X,)),
        rules.LIKE_INPUT,
        Constraint(
            "expected a mask with one bit per number, in whole blocks of 16 bytes", _mask_fits
        ),
        Constraint(
            "expected one number for the share that is kept",
            lambda case: elements(input_shape(case, _KEPT)) == 1,
        ),
    ),
)
