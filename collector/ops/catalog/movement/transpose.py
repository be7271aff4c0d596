"""Dimensions in another order, copied out.

A profile tells both shapes, not the permutation: the first in lexicographic order that fits them
and changes the order of the elements. Of 32,8,8 -> 8,32,8 it is (1, 0, 2), not (2, 0, 1).
"""

from collections.abc import Iterator

from collector.case import Case
from collector.ops.catalog.movement._copy import build_view, copy
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension
from collector.ops.slots import Shape, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_MAX_DIMS = 8


def _fitting(source: Shape, target: Shape, chosen: Shape = ()) -> Iterator[Shape]:
    """Permutations p with target[i] == source[p[i]], in lexicographic order."""
    if len(chosen) == len(target):
        yield chosen
        return
    for dim, size in enumerate(source):
        if dim not in chosen and size == target[len(chosen)]:
            yield from _fitting(source, target, (*chosen, dim))


def _permutation(case: Case) -> Shape | None:
    """None where no permutation fits, or where those that fit only move dimensions of size 1."""
    source, target = input_shape(case, 0), output_shape(case)
    long = [dim for dim, size in enumerate(source) if size > 1]
    if target is None or sorted(target) != sorted(source):
        return None
    if len(source) > _MAX_DIMS or len(long) < 2:
        return None
    return next((p for p in _fitting(source, target) if [d for d in p if d in long] != long), None)


def _build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda whole: whole.permute(_permutation(case)))


OP = OpSpec(
    kernel="Transpose",
    call="torch.Tensor.copy_",
    slots=("x", "permutation"),
    reference=copy,
    build=_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "an output is wanted with the input's dimensions, of which two longer than 1 change "
            "places",
            lambda case: _permutation(case) is not None,
        ),
        one_a_dimension(1),
        one_dtype((0,)),
    ),
    twins=("TransposeAiCore",),
)
