"""Comparisons, logic, and selection of elements by a condition."""

import re
from typing import Any

from collector.model.case import Case, Slot
from collector.model.lookup import make_lookups
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.catalog.elementwise._elementwise import broadcasting, comparison, unary
from collector.ops.launching import arguments_at, calls
from collector.ops.parts import like
from collector.ops.slots import broadcast, input_shape, spelling
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes


def _of_two(kernel: str, name: str, **fields: Any) -> OpSpec:
    """Declare a comparison of two tensors, or of a tensor and a number, which a model's operator
    has no input for."""
    lookups = (
        *make_lookups(f"aten.{name}.Tensor"),
        *make_lookups(f"aten.{name}.Scalar", tc_input_count=1),
    )
    called = f"aclnn{name.title()}"
    return comparison(
        kernel,
        f"torch.{name}",
        lookups=lookups,
        launched_by={**calls(f"{called}Tensor"), f"{called}Scalar": arguments_at(outputs=2)},
        **fields,
    )


EQUAL = _of_two("Equal", "eq")
GREATER = _of_two("Greater", "gt")
GREATER_EQUAL = _of_two("GreaterEqual", "ge")
LESS = _of_two("Less", "lt", twins=("LessAiCore",))
LESS_EQUAL = _of_two("LessEqual", "le")
NOT_EQUAL = _of_two("NotEqual", "ne")
LOGICAL_AND = comparison(
    "LogicalAnd",
    "torch.logical_and",
    "BOOL",
    twins=("LogicalAndAiCore",),
    lookups=make_lookups("aten.logical_and.default", "aten.bitwise_and.Tensor"),
)
LOGICAL_NOT = unary(
    "LogicalNot",
    "torch.logical_not",
    "BOOL",
    twins=("LogicalNotAiCore",),
    lookups=make_lookups("aten.logical_not.default", "aten.bitwise_not.default"),
)
LOGICAL_OR = comparison(
    "LogicalOr",
    "torch.logical_or",
    "BOOL",
    lookups=make_lookups("aten.logical_or.default", "aten.bitwise_or.Tensor"),
)


# Elements of one tensor where a condition is true, of another elsewhere.
SELECT_V2 = broadcasting(
    "SelectV2",
    "torch.where",
    "condition BOOL[&s], then T[&s], else T[&s] -> y T[*s]",
    assumes="half of the conditions are true",
    lookups=make_lookups("aten.where.self"),
    launched_by=calls("aclnnSWhere"),
)

_MASK = 1
_NUMBER = 0
_DENSITY = f"{RUNTIME_PREFIX}mask_density"
_PERCENT = re.compile(r"100|[1-9]?[0-9]")


def _fill_build(case: Case, make: TensorMaker) -> Call:
    x, mask = (case.inputs or ())[:2]
    return Call(like.normal(x, make), _mask(case, mask, make), _NUMBER)


def _mask(case: Case, mask: Slot, make: TensorMaker) -> Any:
    density = case.attribute(_DENSITY)
    if density is None:
        return like.normal(mask, make)
    return make.uniform(mask.shape or (), "FLOAT", 0, 100) < int(density)


def _is_no_larger(case: Case) -> bool:
    x = input_shape(case, 0)
    return broadcast(x, input_shape(case, _MASK)) == x


# Fill with one number where a mask is true, in place: forbidden tokens, padding. A profile does not
# record the number, 0 here, nor the share of the mask that is true: half, unless `Runtime
# mask_density` has it in percent.
MASKED_FILL = OpSpec(
    kernel="MaskedFill",
    call="torch.Tensor.masked_fill_",
    assumes="half of the mask is true if no density is recorded",
    signature="x T[*s], mask BOOL, value T[#]? -> y T[*s]",
    traffic=lambda case: dense_bytes(case),
    build=_fill_build,
    constraints=(
        Constraint("expected a mask that broadcasts to x", _is_no_larger),
        Constraint(
            f"{_DENSITY}: expected a whole number of percent up to 100",
            lambda case: _PERCENT.fullmatch(case.attribute(_DENSITY) or "0") is not None,
        ),
    ),
    twins=("MaskedFillAiCore",),
    lookups=make_lookups("aten.masked_fill.Scalar", tc_input_count=2),
    launched_by={"aclnnInplaceMaskedFillScalar": arguments_at(outputs=0)},
)


# Each element, clamped to an interval. A profile does not record its ends: -1 and 1 are used.

# In an unsigned dtype the lower end is 0, since it cannot represent -1.
_LOW, _HIGH = -1, 1


def _clip_build(case: Case, make: TensorMaker) -> Call:
    slot = (case.inputs or ())[0]
    low = 0 if spelling(slot).startswith("UINT") else _LOW
    return Call(like.normal(slot, make), low, _HIGH)


CLIP_BY_VALUE_V2 = OpSpec(
    kernel="ClipByValueV2",
    call="torch.clamp",
    signature="x T:number[*s], min T[], max T[] -> y T[*s]",
    build=_clip_build,
    operations="2 * s",  # two comparisons
    lookups=make_lookups("aten.clamp.default", tc_input_count=1),
    launched_by={"aclnnClamp": arguments_at(outputs=3)},
)
