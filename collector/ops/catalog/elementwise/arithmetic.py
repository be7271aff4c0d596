"""Arithmetic: sums, products, quotients, powers, roots and trigonometric functions."""

from collector.model.case import Case
from collector.ops.catalog.elementwise._elementwise import binary, build_positive, positive, unary
from collector.ops.dtypes import floating, inputs_are, not_bool, one_dtype
from collector.ops.parts import like
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.parts.tensors import one_number, per_element
from collector.ops.slots import agrees, broadcast, elements, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Absolute value of each element.
ABS = unary("Abs", "torch.abs", not_bool((0,)))

# Sum of two tensors. FLOAT + DT_BF16 gives FLOAT: gradients are accumulated in this way.
ADD = binary("Add", "torch.add", mixed=True, twins=("AddAiCore",))


# Sum of a tensor and a multiple of another. A profile does not record the factor: 2.5 is used,
# since a factor of one is a plain Add.

_X, _Y, _ALPHA = range(3)
_FRACTION, _WHOLE = 2.5, 2


def _axpy_v2_build(case: Case, make: TensorMaker) -> Call:
    x, y, _ = case.inputs or ()
    is_floating = x.known_dtype is not None and x.known_dtype.is_floating
    return Call(
        *(like.normal(slot, make) for slot in (x, y)), alpha=_FRACTION if is_floating else _WHOLE
    )


def _sum(case: Case) -> tuple[int, ...] | None:
    return broadcast(input_shape(case, _X), input_shape(case, _Y))


AXPY_V2 = OpSpec(
    kernel="AxpyV2",
    call="torch.add",
    slots=("x1", "x2", "alpha"),
    build=_axpy_v2_build,
    flops=lambda case: 2 * elements(_sum(case)),
    constraints=(
        Constraint(
            "expected an output of the shape that the inputs broadcast to",
            lambda c: agrees(c, 0, _sum(c)),
        ),
        one_dtype((_X, _Y, _ALPHA)),
        not_bool((_X,)),
        one_number("alpha", _ALPHA),
    ),
)

# Cosine of each element, used for rotary positions.
COS = unary("Cos", "torch.cos", floating((0,)))

# e to the power of each element.
EXP = unary("Exp", "torch.exp", floating((0,)))

# Quotient of two tensors, rounded down: the block of a position.
FLOOR_DIV = binary("FloorDiv", "torch.floor_divide", not_bool((0, 1)), build=build_positive)

# Remainder of a quotient that is rounded down: the position within a block. On Atlas A2 and A3
# aclnn expands both inputs to the output's shape first.
FLOOR_MOD = binary("FloorMod", "torch.remainder", not_bool((0, 1)), build=build_positive)

# Natural logarithm of each element.
LOG = unary("Log", "torch.log", floating((0,)), build=build_positive)

# Natural logarithm of one more than each element.
LOG1P = unary("Log1p", "torch.log1p", floating((0,)), build=build_positive)

# The greater of two elements.
MAXIMUM = binary("Maximum", "torch.maximum")

# The smaller of two elements.
MINIMUM = binary("Minimum", "torch.minimum")

# Product of two tensors, or of a tensor and a scalar (an empty cell).
MUL = binary("Mul", "torch.mul", mixed=True, twins=("MulAiCore",))


# Product of a 16-bit tensor and a number of the host. A profile does not record it: 0.5 is used.
#
# aclnnMuls launches it for DT_BF16 and a floating-point number (Ascend 950: for FLOAT16 as well),
# so that the number is not rounded first; for other arguments it launches a Mul with a scalar.


def _muls_build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    return Call(like.normal(slot, make), 0.5)


MULS = unary("Muls", "torch.mul", inputs_are(("DT_BF16", "FLOAT16"), (0,)), build=_muls_build)

# x * factor + y: an MoE layer adds its routed and its shared experts in this way.
_FACTOR = 2.5  # of DeepSeek-V3; a profile does not record it


def _muls_add_build(case: Case, make: TensorMaker) -> Call:
    tensors = [like.normal(slot, make) for slot in case.inputs or ()]
    return Call(*tensors, _FACTOR)


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return bool(x) and input_shape(case, 1) == x and outputs_agree(case, x)


MULS_ADD_KERNEL = OpSpec(
    kernel="muls_add_kernel",
    call="torch.ops.vllm.muls_add",
    slots=("x", "y"),
    reference=lambda torch, x, y, factor: torch.add(y, x, alpha=factor),
    build=_muls_add_build,
    flops=per_element(2),
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("expected two tensors of one shape, and an output of this shape", _fits),
        nothing_empty(),
        inputs_are(FLOATS, (0,)),
        one_dtype((0, 1)),
    ),
)

# Negation of each element.
NEG = unary("Neg", "torch.neg", not_bool((0,)))

# Power of two tensors, or of a tensor and a scalar (an empty cell).
POW = binary("Pow", "torch.pow", not_bool((0, 1)), build=build_positive)

# Power of a tensor and a number of the host: the square of a gradient's norm.
#
# aclnnPowTensorScalar launches it on Atlas A2 and A3 for the exponents 2, 3, 0.5, -0.5, -1 and -2
# of floating-point tensors; other powers are a Pow. A profile does not record the exponent: 2 is
# used.
_EXPONENT = 2.0

POWS = binary(
    "Pows",
    "torch.pow",
    inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (0, 1)),
    Constraint("expected a scalar exponent", lambda case: input_shape(case, 1) == ()),
    build=lambda case, make: Call(positive((case.inputs or ())[0], make), _EXPONENT),
)

# Quotient of two tensors, or of a tensor and a scalar (an empty cell).
REAL_DIV = binary("RealDiv", "torch.div", floating((0, 1)), build=build_positive)

# One over each element.
RECIPROCAL = unary("Reciprocal", "torch.reciprocal", floating((0,)), build=build_positive)

# One over the square root of each element.
RSQRT = unary("Rsqrt", "torch.rsqrt", floating((0,)), build=build_positive)

# Sine of each element, used for rotary positions.
SIN = unary("Sin", "torch.sin", floating((0,)))

# Square root of each element.
SQRT = unary("Sqrt", "torch.sqrt", floating((0,)), build=build_positive)

# Square of each element of an integer tensor; for a floating-point one, Atlas A2 and A3 launch a
# Pows.
SQUARE = unary("Square", "torch.square", inputs_are(("INT32", "INT64"), (0,)))

# Difference of two tensors; of two scalars when an optimizer counts its steps.
SUB = binary("Sub", "torch.sub", not_bool((0, 1)), twins=("SubAiCore",))
