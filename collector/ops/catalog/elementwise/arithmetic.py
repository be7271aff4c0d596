"""Arithmetic: sums, products, quotients, powers, roots and trigonometric functions."""

from typing import Any

from collector.model.case import Case
from collector.ops.catalog.elementwise._elementwise import binary, build_positive, positive, unary
from collector.ops.dtypes import floating, inputs_are, not_bool, one_dtype
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import agrees, broadcast, elements, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Absolute value of each element.
ABS = unary("Abs", "torch.abs", lambda torch, x: torch.abs(x), constraints=(not_bool((0,)),))


# Sum of two tensors. FLOAT + DT_BF16 gives FLOAT: gradients are accumulated in this way.
ADD = binary(
    "Add", "torch.add", lambda torch, x, y: torch.add(x, y), mixed=True, twins=("AddAiCore",)
)


# Sum of a tensor and a multiple of another. A profile does not record the factor: 2.5 is used,
# since a factor of one is a plain Add.

_X, _Y, _ALPHA = range(3)
_FRACTION, _WHOLE = 2.5, 2


def _axpy_v2_build(case: Case, make: TensorMaker) -> Call:
    x, y, _ = case.inputs or ()
    is_floating = x.known_dtype is not None and x.known_dtype.is_floating
    return Call(
        tuple(make.normal(slot.shape or (), slot.dtype) for slot in (x, y)),
        {"alpha": _FRACTION if is_floating else _WHOLE},
    )


def _axpy_v2_reference(torch: Any, x: Any, y: Any, *, alpha: float) -> Any:
    return torch.add(x, y, alpha=alpha)


def _sum(case: Case) -> tuple[int, ...] | None:
    return broadcast(input_shape(case, _X), input_shape(case, _Y))


AXPY_V2 = OpSpec(
    kernel="AxpyV2",
    call="torch.add",
    slots=("x1", "x2", "alpha"),
    reference=_axpy_v2_reference,
    build=_axpy_v2_build,
    flops=lambda case: 2 * elements(_sum(case)),
    constraints=(
        Constraint(
            "expected an output of the shape that the inputs broadcast to",
            lambda c: agrees(c, 0, _sum(c)),
        ),
        one_dtype((_X, _Y, _ALPHA)),
        not_bool((_X,)),
        Constraint(
            "expected one number for alpha", lambda case: input_shape(case, _ALPHA) in ((), (1,))
        ),
    ),
)


# Cosine of each element, used for rotary positions.
COS = unary("Cos", "torch.cos", lambda torch, x: torch.cos(x), constraints=(floating((0,)),))


# e to the power of each element.
EXP = unary(
    "Exp",
    "torch.exp",
    lambda torch, x: torch.exp(x),
    constraints=(floating((0,)),),
)


# Quotient of two tensors, rounded down: the block of a position.
FLOOR_DIV = binary(
    "FloorDiv",
    "torch.floor_divide",
    lambda torch, x, y: torch.floor_divide(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)


# Remainder of a quotient that is rounded down: the position within a block. On Atlas A2 and A3
# aclnn expands both inputs to the output's shape first.
FLOOR_MOD = binary(
    "FloorMod",
    "torch.remainder",
    lambda torch, x, y: torch.remainder(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)


# Natural logarithm of each element.
LOG = unary(
    "Log",
    "torch.log",
    lambda torch, x: torch.log(x),
    build=build_positive,
    constraints=(floating((0,)),),
)


# Natural logarithm of one more than each element.
LOG1P = unary(
    "Log1p",
    "torch.log1p",
    lambda torch, x: torch.log1p(x),
    build=build_positive,
    constraints=(floating((0,)),),
)


# The greater of two elements.
MAXIMUM = binary("Maximum", "torch.maximum", lambda torch, x, y: torch.maximum(x, y))


# The smaller of two elements.
MINIMUM = binary("Minimum", "torch.minimum", lambda torch, x, y: torch.minimum(x, y))


# Product of two tensors, or of a tensor and a scalar (an empty cell).
MUL = binary(
    "Mul", "torch.mul", lambda torch, x, y: torch.mul(x, y), mixed=True, twins=("MulAiCore",)
)


# Product of a 16-bit tensor and a number of the host. A profile does not record it: 0.5 is used.
#
# aclnnMuls launches it for DT_BF16 and a floating-point number (Ascend 950: for FLOAT16 as well),
# so that the number is not rounded first; for other arguments it launches a Mul with a scalar.


def _muls_build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    return Call((make.normal(slot.shape or (), slot.dtype), 0.5))


MULS = unary(
    "Muls",
    "torch.mul",
    lambda torch, x, factor: torch.mul(x, factor),
    build=_muls_build,
    constraints=(inputs_are(("DT_BF16", "FLOAT16"), (0,)),),
)


# x * factor + y: an MoE layer adds its routed and its shared experts in this way.
_FACTOR = 2.5  # of DeepSeek-V3; a profile does not record it


def _muls_add_kernel_build(case: Case, make: TensorMaker) -> Call:
    tensors = [make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ()]
    return Call((*tensors, _FACTOR))


def _muls_add_kernel_reference(torch: Any, x: Any, y: Any, factor: float) -> Any:
    return torch.add(y, x, alpha=factor)


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and input_shape(case, 1) == x and outputs_agree(case, x)


MULS_ADD_KERNEL = OpSpec(
    kernel="muls_add_kernel",
    call="torch.ops.vllm.muls_add",
    slots=("x", "y"),
    reference=_muls_add_kernel_reference,
    build=_muls_add_kernel_build,
    flops=lambda case: 2 * elements(input_shape(case, 0)),
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("expected two tensors of one shape, and an output of this shape", _fits),
        nothing_empty(),
        inputs_are(FLOATS, (0,)),
        one_dtype((0, 1)),
    ),
)


# Negation of each element.
NEG = unary("Neg", "torch.neg", lambda torch, x: torch.neg(x), constraints=(not_bool((0,)),))


# Power of two tensors, or of a tensor and a scalar (an empty cell).
POW = binary(
    "Pow",
    "torch.pow",
    lambda torch, x, y: torch.pow(x, y),
    build=build_positive,
    constraints=(not_bool((0, 1)),),
)


# Power of a tensor and a number of the host: the square of a gradient's norm.
#
# aclnnPowTensorScalar launches it on Atlas A2 and A3 for the exponents 2, 3, 0.5, -0.5, -1 and -2
# of floating-point tensors; other powers are a Pow. A profile does not record the exponent: 2 is
# used.
_EXPONENT = 2.0


def _pows_build(case: Case, make: TensorMaker) -> Call:
    return Call((positive((case.inputs or ())[0], make), _EXPONENT))


POWS = binary(
    "Pows",
    "torch.pow",
    lambda torch, x, exponent: torch.pow(x, exponent),
    build=_pows_build,
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (0, 1)),
        Constraint("expected a scalar exponent", lambda case: input_shape(case, 1) == ()),
    ),
)


# Quotient of two tensors, or of a tensor and a scalar (an empty cell).
REAL_DIV = binary(
    "RealDiv",
    "torch.div",
    lambda torch, x, y: torch.div(x, y),
    build=build_positive,
    constraints=(floating((0, 1)),),
)


# One over each element.
RECIPROCAL = unary(
    "Reciprocal",
    "torch.reciprocal",
    lambda torch, x: torch.reciprocal(x),
    build=build_positive,
    constraints=(floating((0,)),),
)


# One over the square root of each element.
RSQRT = unary(
    "Rsqrt",
    "torch.rsqrt",
    lambda torch, x: torch.rsqrt(x),
    build=build_positive,
    constraints=(floating((0,)),),
)


# Sine of each element, used for rotary positions.
SIN = unary("Sin", "torch.sin", lambda torch, x: torch.sin(x), constraints=(floating((0,)),))


# Square root of each element.
SQRT = unary(
    "Sqrt",
    "torch.sqrt",
    lambda torch, x: torch.sqrt(x),
    build=build_positive,
    constraints=(floating((0,)),),
)


# Square of each element of an integer tensor; for a floating-point one, Atlas A2 and A3 launch a
# Pows.
SQUARE = unary(
    "Square",
    "torch.square",
    lambda torch, x: torch.square(x),
    constraints=(inputs_are(("INT32", "INT64"), (0,)),),
)


# Difference of two tensors; of two scalars when an optimizer counts its steps.
SUB = binary(
    "Sub",
    "torch.sub",
    lambda torch, x, y: torch.sub(x, y),
    constraints=(not_bool((0, 1)),),
    twins=("SubAiCore",),
)
