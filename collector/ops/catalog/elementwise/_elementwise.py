"""Declarations of elementwise operators: one result for each element, whatever the layout."""

from collections.abc import Callable
from typing import Any

from collector.model.case import Case, Slot
from collector.model.vocabulary import Dtype, dtype_of
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.slots import output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

Build = Callable[[Case, TensorMaker], Call]


def unary(kernel: str, call: str, dtype: str = "", *more: Constraint, **fields: Any) -> OpSpec:
    """Declare an operator of one input and one output like it, of a class of dtypes or any."""
    return broadcasting(kernel, call, f"x {_one(dtype)}[*s] -> y T[*s]", *more, **fields)


def binary(kernel: str, call: str, dtype: str = "", *more: Constraint, **fields: Any) -> OpSpec:
    """Declare an operator of two inputs of one dtype that broadcast. An empty cell is a scalar."""
    signature = f"x {_one(dtype)}[&s], y T[&s] -> z T[*s]"
    return broadcasting(kernel, call, signature, *more, **fields)


def mixed(kernel: str, call: str, **fields: Any) -> OpSpec:
    """Declare a binary operator that also takes FLOAT together with a 16-bit type, in the dtype
    that torch promotes to. Other kernels convert inputs of two dtypes."""
    return broadcasting(kernel, call, "x[&s], y[&s] -> z[*s]", _PROMOTES, _MIXES, **fields)


def comparison(kernel: str, call: str, dtype: str = "", **fields: Any) -> OpSpec:
    """Declare a comparison of two inputs of one dtype that broadcast; the output is BOOL."""
    return broadcasting(kernel, call, f"x {_one(dtype)}[&s], y T[&s] -> z BOOL[*s]", **fields)


def broadcasting(
    kernel: str, call: str, signature: str, *more: Constraint, cost: int = 1, **fields: Any
) -> OpSpec:
    """Declare an operator of `cost` operations for each element of the output, which is `*s`."""
    operations = f"{cost} * s"
    return OpSpec(kernel, call, signature, operations=operations, constraints=more, **fields)


def declare_gradient(
    kernel: str, call: str, slots: tuple[str, str], *, cost: int, **fields: Any
) -> OpSpec:
    """Declare the gradient of a function of one tensor, from two tensors of one shape.

    `cost` is the number of operations per element."""
    signature = f"{slots[0]} T:floating[*s], {slots[1]} T[*s] -> out T[*s]"
    return broadcasting(kernel, call, signature, cost=cost, **fields)


def _one(dtype: str) -> str:
    return f"T:{dtype}" if dtype else "T"


def build_positive(case: Case, make: TensorMaker) -> Call:
    """Build positive numbers near 1: their quotients, powers, roots and logarithms are finite."""
    return Call(*(positive(slot, make) for slot in case.inputs or ()))


def positive(slot: Slot, make: TensorMaker) -> Any:
    """Return floats of [0.5, 2), or integers of 1 to 3; a scalar for an empty cell."""
    if rules.accepted(slot.known_dtype).is_floating:
        return like.uniform_like(slot, make, 0.5, 2.0)
    return like.integers(slot, make, 1, 4)


def _is_promoted(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype == promoted(case.inputs or ())


def _is_computed_together(case: Case) -> bool:
    dtypes = {slot.known_dtype for slot in case.inputs or ()}
    wide = promoted(case.inputs or ())
    return len(dtypes) == 1 or (
        # torch keeps 16 bits for a 16-bit tensor and a FLOAT scalar: that takes a Cast as well.
        wide is not None
        and wide.spelling == "FLOAT"
        and wide in dtypes
        and all(dtype and dtype.is_floating for dtype in dtypes)
    )


_PROMOTES = Constraint("expected an output of the dtype that the inputs promote to", _is_promoted)
_MIXES = Constraint(
    "expected inputs of one dtype, or FLOAT with a 16-bit tensor", _is_computed_together
)


# torch's type promotion, without torch.


def promoted(slots: tuple[Slot, ...]) -> Dtype | None:
    """Return the dtype of torch's result for these tensors; None if a dtype is unknown.

    A scalar counts only if its kind of number (bool, integer, float) is higher than the tensors'
    kind."""
    result: dict[bool, Dtype] = {}
    for slot in slots:
        dtype, is_scalar = slot.known_dtype, not slot.shape
        if dtype is None:
            return None
        result[is_scalar] = _wider(result[is_scalar], dtype) if is_scalar in result else dtype
    tensors, scalars = result.get(False), result.get(True)
    if tensors is None or scalars is None:
        return tensors or scalars
    return _wider(tensors, scalars) if _kind(scalars) > _kind(tensors) else tensors


def _wider(a: Dtype, b: Dtype) -> Dtype:
    if a == b or _kind(a) != _kind(b):
        return max(a, b, key=_kind)
    if a.item_bits != b.item_bits:
        return max(a, b, key=lambda dtype: dtype.item_bits)
    # Only these pairs have the same size: BF16 and FLOAT16, INT8 and UINT8; neither contains the
    # other.
    return dtype_of("FLOAT" if a.is_floating else "INT16") or a


def _kind(dtype: Dtype) -> int:
    """Return 0 for truth values, 1 for integers, 2 for floating-point numbers."""
    return 2 if dtype.is_floating else 0 if dtype.spelling == "BOOL" else 1
