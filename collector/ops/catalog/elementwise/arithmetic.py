"""Arithmetic: sums, products, quotients, powers, roots and trigonometric functions."""

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.elementwise._elementwise import (
    Build,
    binary,
    broadcasting,
    build_positive,
    mixed,
    positive,
    unary,
)
from collector.ops.launching import arguments_at, calls
from collector.ops.parts import like
from collector.ops.slots import broadcast, input_shape
from collector.ops.spec import (
    Call,
    Constraint,
    Need,
    NpuCall,
    OpSpec,
    TensorMaker,
    build_from_slots,
)


def _with_number(number: float) -> Build:
    """Build the inputs, and a number of the host after them."""
    return lambda case, make: Call(*build_from_slots(case, make).args, number)


ABS = unary("Abs", "torch.abs", "number", lookups=make_lookups("aten.abs.default"))

# Sum of two tensors. FLOAT + DT_BF16 gives FLOAT: gradients are accumulated in this way.
ADD = mixed(
    "Add",
    "torch.add",
    twins=("AddAiCore",),
    lookups=make_lookups("aten.add.Tensor", query_mode="elementwise"),
    launched_by={
        "aclnnAdds": arguments_at(outputs=-1),
        "aclnnInplaceAdds": arguments_at(outputs=0),
    },
)


_X, _ALPHA = 0, 2
_FRACTION, _WHOLE = 2.5, 2


def _axpy_build(case: Case, make: TensorMaker) -> Call:
    x, y = case.inputs or ()
    is_floating = rules.accepted(x.known_dtype).is_floating
    return Call(
        *(like.normal(slot, make) for slot in (x, y)), alpha=_FRACTION if is_floating else _WHOLE
    )


# Sum of a tensor and a multiple of another. A profile does not record the factor: 2.5 is used,
# since a factor of one is a plain Add. On Atlas A2 and A3 aclnnAdd launches a Mul and an Add for
# other dtypes (CANN's open sources, ops-math).
AXPY = OpSpec(
    kernel="Axpy",
    call="torch.add",
    signature="x1 T:FLOAT|FLOAT16|INT32[&s], x2 T[&s] -> y T[*s]",
    build=_axpy_build,
    operations="2 * s",
)

# The same with a factor in a tensor. On Atlas A2 and A3 aclnnAddcmul launches it where its value
# is one and the factor broadcasts to the first tensor (ops-math); Ascend 950 has it for sums too.
AXPY_V2 = OpSpec(
    kernel="AxpyV2",
    call="torch.addcmul",
    signature="x1 T:float|INT32[&s], x2 T[&s], alpha T -> y T[*s]",
    operations="2 * s",
    constraints=(
        Constraint(
            "expected alpha to broadcast to x1",
            lambda c: broadcast(input_shape(c, _X), input_shape(c, _ALPHA)) == input_shape(c, _X),
        ),
    ),
)

COS = unary("Cos", "torch.cos", "floating", lookups=make_lookups("aten.cos.default"))
EXP = unary("Exp", "torch.exp", "floating", lookups=make_lookups("aten.exp.default"))
FLOOR_DIV = binary(
    "FloorDiv",
    "torch.floor_divide",
    "number",
    build=build_positive,
    lookups=make_lookups("aten.floor_divide.default", query_mode="elementwise"),
    launched_by={**calls("aclnnFloorDivide"), "aclnnFloorDivides": arguments_at(outputs=-1)},
)

# Remainder of a quotient that is rounded down: the position within a block. On Atlas A2 and A3
# aclnn expands both inputs to the output's shape first.
FLOOR_MOD = binary(
    "FloorMod",
    "torch.remainder",
    "number",
    build=build_positive,
    lookups=make_lookups("aten.remainder.Tensor", query_mode="elementwise"),
    launched_by=calls("aclnnRemainderTensorScalar", "aclnnRemainderTensorTensor"),
)
LOG = unary(
    "Log",
    "torch.log",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.log.default"),
)
LOG1P = unary(
    "Log1p",
    "torch.log1p",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.log1p.default"),
)
MAXIMUM = binary(
    "Maximum",
    "torch.maximum",
    lookups=make_lookups("aten.maximum.default", query_mode="elementwise"),
)
MINIMUM = binary(
    "Minimum",
    "torch.minimum",
    lookups=make_lookups("aten.minimum.default", query_mode="elementwise"),
)
MUL = mixed(
    "Mul",
    "torch.mul",
    twins=("MulAiCore",),
    lookups=make_lookups("aten.mul.Tensor", query_mode="elementwise"),
    launched_by={"aclnnMuls": arguments_at(outputs=2), "aclnnInplaceMuls": arguments_at(outputs=0)},
)


# Product of a 16-bit tensor and a number of the host. A profile does not record it: 0.5 is used.
#
# aclnnMuls launches it for DT_BF16 and a floating-point number (Ascend 950: for FLOAT16 as well),
# so that the number is not rounded first; for other arguments it launches a Mul with a scalar.
MULS = unary(
    "Muls",
    "torch.mul",
    "half",
    build=_with_number(0.5),
    lookups=make_lookups("aten.mul.Scalar", tc_input_count=1),
)

# x * factor + y: an MoE layer adds its routed and its shared experts in this way.
_FACTOR = 2.5  # of DeepSeek-V3; a profile does not record it


MULS_ADD_KERNEL = OpSpec(
    kernel="muls_add_kernel",
    call="torch.ops.vllm.muls_add",
    signature="x T:float[*rows, d], y T[*rows, d] -> z T[*rows, d]",
    reference=lambda torch, x, y, factor: torch.add(y, x, alpha=factor),
    build=_with_number(_FACTOR),
    operations="2 * rows * d",
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(rules.NOTHING_EMPTY,),
)

NEG = unary("Neg", "torch.neg", "number", lookups=make_lookups("aten.neg.default"))
POW = binary(
    "Pow",
    "torch.pow",
    "number",
    build=build_positive,
    lookups=make_lookups("aten.pow.Tensor_Tensor", query_mode="elementwise"),
    launched_by=calls("aclnnPowTensorTensor"),
)

# Power of a tensor and a number of the host: the square of a gradient's norm.
#
# aclnnPowTensorScalar launches it on Atlas A2 and A3 for the exponents 2, 3, 0.5, -0.5, -1 and -2
# of floating-point tensors; other powers are a Pow. A profile does not record the exponent: 2 is
# used.
_EXPONENT = 2.0

POWS = broadcasting(
    "Pows",
    "torch.pow",
    "x T:float[*s], exponent T[] -> y T[*s]",
    build=lambda case, make: Call(positive(case.inputs[0], make), _EXPONENT),
    lookups=make_lookups("aten.pow.Tensor_Scalar", tc_input_count=1),
    launched_by={"aclnnPowTensorScalar": arguments_at(outputs=2)},
)
REAL_DIV = binary(
    "RealDiv",
    "torch.div",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.div.Tensor", query_mode="elementwise"),
    launched_by=calls("aclnnDiv"),
)
RECIPROCAL = unary(
    "Reciprocal",
    "torch.reciprocal",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.reciprocal.default"),
)
RSQRT = unary(
    "Rsqrt",
    "torch.rsqrt",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.rsqrt.default"),
)
SIN = unary("Sin", "torch.sin", "floating", lookups=make_lookups("aten.sin.default"))
SQRT = unary(
    "Sqrt",
    "torch.sqrt",
    "floating",
    build=build_positive,
    lookups=make_lookups("aten.sqrt.default"),
)

# Square of each element of an integer tensor; for a floating-point one, Atlas A2 and A3 launch a
# Pows.
SQUARE = unary(
    "Square",
    "torch.square",
    "integer",
    lookups=make_lookups("aten.square.default"),
)

# Difference of two tensors; of two scalars when an optimizer counts its steps.
SUB = binary(
    "Sub",
    "torch.sub",
    "number",
    twins=("SubAiCore",),
    lookups=make_lookups("aten.sub.Tensor", query_mode="elementwise"),
    launched_by={"aclnnSubs": arguments_at(outputs=-1)},
)
