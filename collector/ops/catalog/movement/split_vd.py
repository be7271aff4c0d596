"""A tensor cut into parts along one dimension. Graphs alone launch it: torch gives views."""

from typing import Any

from collector.case import Case
from collector.ops.parts.moving import no_flops
from collector.ops.slots import Shape, input_shape
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def _dim(case: Case) -> int | None:
    """The one dimension along which the parts make up the input; None where none does, or where
    several do."""
    whole, parts = input_shape(case, 0), _parts(case)
    if any(len(part) != len(whole) for part in parts):
        return None
    fits = [
        dim
        for dim, size in enumerate(whole)
        if size == sum(part[dim] for part in parts)
        and all(_without(part, dim) == _without(whole, dim) for part in parts)
    ]
    return fits[0] if len(fits) == 1 else None


def _parts(case: Case) -> list[Shape]:
    return [slot.shape or () for slot in case.outputs or ()]


def _without(shape: Shape, dim: int) -> Shape:
    return shape[:dim] + shape[dim + 1 :]


def _build(case: Case, make: TensorMaker) -> Call:
    (whole,), dim = case.inputs or (), _dim(case) or 0
    return Call((make.normal(whole.shape or (), whole.dtype), [p[dim] for p in _parts(case)], dim))


def _reference(torch: Any, whole: Any, sizes: list[int], dim: int) -> Any:
    return _copied(torch.split, whole, sizes, dim)


def _copied(split: Any, whole: Any, sizes: list[int], dim: int) -> Any:
    """A graph gives back what it computes and no views: the copies become none of its kernels."""
    return tuple(part.clone() for part in split(whole, sizes, dim))


OP = OpSpec(
    kernel="SplitVD",
    call="torch.split",
    slots=("x",),
    reference=_reference,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "outputs are wanted that make up the input along one dimension, and no other",
            lambda case: len(case.outputs or ()) > 1 and _dim(case) is not None,
        ),
        Constraint(
            "one dtype is wanted for the input and the outputs",
            lambda case: (
                len({s.known_dtype for s in (*(case.inputs or ()), *(case.outputs or ()))}) == 1
            ),
        ),
    ),
    npu=NpuCall(graph=GraphCall(takes=lambda case: True, run=_copied)),
)
