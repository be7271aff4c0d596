"""A view whose strides no other kernel can follow, copied out.

A profile tells the memory and the view's shape, not the strides. Taken are, in this order:

* a block of each row with its first two dimensions exchanged, as the query within a fused
  projection where heads come first. CANN copies it by AsStrided where a line of it is a multiple
  of 64 elements (else by Slice and Transpose);
* rows as far apart as the memory allows, where the last is cut short, so that it is no Slice.
"""

from collector.case import Case
from collector.ops.catalog.movement._copy import build_view, copy
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension, picked_bytes
from collector.ops.slots import Shape, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_LINE = 64


def _strides(case: Case) -> Shape | None:
    memory, view = elements(input_shape(case, 0)), output_shape(case)
    long = [dim for dim, size in enumerate(view or ()) if size > 1]
    if view is None or not long or not all(view):
        return None
    return _exchanged(view, long, memory) or _apart(view, long, memory)


def _exchanged(view: Shape, long: list[int], memory: int) -> Shape | None:
    """`long` holds the dimensions longer than 1."""
    if len(long) < 3 or view[-1] % _LINE:
        return None
    first, second = long[:2]
    block = elements(view[second + 1 :])
    row = memory // view[second] // block * block
    strides = (*_dense(view)[:first], block, *_dense(view)[first + 1 :])
    strides = (*strides[:second], row, *strides[second + 1 :])
    return strides if row > view[first] * block else None


def _apart(view: Shape, long: list[int], memory: int) -> Shape | None:
    first, rows = long[0], view[long[0]]
    row = elements(view[first + 1 :])
    stride = (memory - row) // (rows - 1)
    strides = (*_dense(view)[:first], stride, *_dense(view)[first + 1 :])
    return strides if stride > row and stride * rows > memory else None


def _dense(view: Shape) -> Shape:
    return tuple(elements(view[dim + 1 :]) for dim in range(len(view)))


def _build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda x: x.as_strided(output_shape(case), _strides(case)))


OP = OpSpec(
    kernel="AsStrided",
    call="torch.Tensor.copy_",
    slots=("x", "sizes", "strides", "offset"),
    reference=copy,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint(
            "memory is wanted in which the output lies scattered, so that no other kernel does",
            lambda case: _strides(case) is not None,
        ),
        one_a_dimension(1, of_output=True),
        one_a_dimension(2, of_output=True),
        one_dtype((0,)),
    ),
    twins=("AsStridedAiCore",),
)
