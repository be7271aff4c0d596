"""Tensors joined along the one dimension in which the output is their sum."""

from typing import Any

from collector.case import Case
from collector.ops.catalog._copy import no_flops, place
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _dim(case: Case) -> int | None:
    """The first dimension along which the inputs make up the output; None where none does."""
    parts, whole = [input_shape(case, i) for i in range(len(case.inputs or ()))], output_shape(case)
    if whole is None or any(len(part) != len(whole) for part in parts):
        return None
    for dim, size in enumerate(whole):
        others = whole[:dim] + whole[dim + 1 :]
        if size == sum(part[dim] for part in parts) and all(
            part[:dim] + part[dim + 1 :] == others for part in parts
        ):
            return dim
    return None


def _build(case: Case, make: TensorMaker) -> Call:
    parts = [make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ()]
    return Call((parts, _dim(case), place((case.outputs or ())[0], make)))


def _reference(torch: Any, parts: Any, dim: int, whole: Any) -> Any:
    return torch.cat(parts, dim, out=whole)


def _has_one_dtype(case: Case) -> bool:
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return len({slot.known_dtype for slot in slots}) == 1


OP = OpSpec(
    kernel="ConcatD",
    call="torch.cat",
    slots=("x",),
    variadic=True,
    reference=_reference,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "inputs are wanted that make up the output along one dimension",
            lambda case: _dim(case) is not None,
        ),
        Constraint("one dtype is wanted for all inputs and the output", _has_one_dtype),
    ),
)
