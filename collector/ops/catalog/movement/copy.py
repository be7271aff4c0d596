"""Operators that only move data: one copy into memory that is there already, in the real dtype.

`copy_` from a view launches the kernel that makes the view dense, and none beside it: CANN's
`Contiguous` takes Slice, Transpose or BroadcastTo where one of them does, else AsStrided, and
writes straight into a dense target (its open sources, ops-math; profiles of CANN 8.3 show so).
"""

from collections.abc import Callable, Iterator
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import inputs_are, not_bool, one_dtype
from collector.ops.parts.tensors import no_flops, one_a_dimension, picked_bytes, place
from collector.ops.slots import (
    Shape,
    agrees,
    broadcast,
    elements,
    input_shape,
    output_shape,
    output_slot,
)
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def copy(torch: Any, target: Any, source: Any) -> Any:
    """One pass over both, with a conversion where their dtypes differ."""
    return target.copy_(source)


def build_copy(case: Case, make: TensorMaker) -> Call:
    """The input, and a place for the output; where outputs are N/A, a place like the input."""
    (source,) = case.inputs or ()
    return Call(
        (place(output_slot(case) or source, make), make.normal(source.shape or (), source.dtype))
    )


def build_view(case: Case, make: TensorMaker, view: Callable[[Any], Any]) -> Call:
    """A place for the output, and a view of the first input, whose other slots are numbers that
    the view stands for."""
    source, target = (case.inputs or ())[0], (case.outputs or ())[0]
    return Call((place(target, make), view(make.normal(source.shape or (), source.dtype))))


# A view whose strides no other kernel can follow, copied out.
#
# A profile tells the memory and the view's shape, not the strides. Taken are, in this order:
#
# * a block of each row with its first two dimensions exchanged, as the query within a fused
#   projection where heads come first. CANN copies it by AsStrided where a line of it is a multiple
#   of 64 elements (else by Slice and Transpose);
# * rows as far apart as the memory allows, where the last is cut short, so that it is no Slice.
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


def _as_strided_build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda x: x.as_strided(output_shape(case), _strides(case)))


AS_STRIDED = OpSpec(
    kernel="AsStrided",
    call="torch.Tensor.copy_",
    slots=("x", "sizes", "strides", "offset"),
    reference=copy,
    build=_as_strided_build,
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


# A tensor repeated along dimensions of size 1, or along new ones in front.


def _broadcast_to_build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda x: x.expand(output_shape(case)))


def _broadcast_to_fits(case: Case) -> bool:
    x, out = input_shape(case, 0), output_shape(case)
    return out is not None and broadcast(x, out) == out and elements(out) > elements(x)


BROADCAST_TO = OpSpec(
    kernel="BroadcastTo",
    call="torch.Tensor.copy_",
    slots=("x", "shape"),
    reference=copy,
    build=_broadcast_to_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("a larger output is wanted to which the input broadcasts", _broadcast_to_fits),
        one_a_dimension(1, of_output=True),
        one_dtype((0,)),
        not_bool((0,)),  # CANN broadcasts it as INT32, between two casts
    ),
)


# Conversion to another dtype, which the output names.


def _npu_build(case: Case, make: TensorMaker) -> Call:
    (source,), (target,) = case.inputs or (), case.outputs or ()
    return Call((make.normal(source.shape or (), source.dtype), make.dtype(target.dtype)))


def _converts(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype != (case.inputs or ())[0].known_dtype


CAST = OpSpec(
    kernel="Cast",
    call="torch.Tensor.to",
    slots=("x",),
    reference=copy,
    build=build_copy,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "the output names the dtype, and is unknown", lambda c: output_slot(c) is not None
        ),
        Constraint("the output wants the input's shape", lambda c: agrees(c, 0, input_shape(c, 0))),
        Constraint("the output wants another dtype than the input", _converts),
    ),
    npu=NpuCall(build=_npu_build),
    twins=("CastAiCore",),
)


# A tensor with zeros behind it. A profile does not tell the paddings: at the ends here.


def _pad_v3_build(case: Case, make: TensorMaker) -> Call:
    """torch names the last dimension's paddings first, each as (front, end)."""
    x, out = (case.inputs or ())[0], output_shape(case) or ()
    added = [whole - size for whole, size in zip(out, input_shape(case, 0), strict=True)]
    paddings = [side for end in reversed(added) for side in (0, end)]
    return Call((make.normal(x.shape or (), x.dtype), paddings))


def _pad_v3_reference(torch: Any, x: Any, paddings: Any) -> Any:
    return torch.nn.functional.pad(x, paddings)


def _pad_v3_fits(case: Case) -> bool:
    """Without anything to add, CANN copies; an empty input it fills."""
    x, out = input_shape(case, 0), output_shape(case)
    return (
        out is not None
        and len(out) == len(x)
        and all(whole >= size for whole, size in zip(out, x, strict=True))
        and elements(out) > elements(x) > 0
    )


PAD_V3 = OpSpec(
    kernel="PadV3",
    call="torch.nn.functional.pad",
    slots=("x", "paddings", "value"),
    optional=frozenset({2}),
    reference=_pad_v3_reference,
    build=_pad_v3_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted that holds the input and more", _pad_v3_fits),
        one_a_dimension(1, each=2),
        one_dtype((0,)),
        not_bool((0,)),  # CANN pads it as INT8, between two casts
    ),
    twins=("PadV3AiCore",),
)


# Each row of a tensor as often as a list says, along the one dimension in which the output
# differs: from sequences to tokens. RepeatInterleaveV2 where that is a dimension of several.
_REPEATS = 1


def _dim(case: Case) -> int | None:
    """The first dimension along which the repeats may make the output of the input."""
    x, out, repeats = input_shape(case, 0), output_shape(case), input_shape(case, _REPEATS)
    if out is None or len(out) != len(x) or len(repeats) != 1:
        return None
    for dim, (size, total) in enumerate(zip(x, out, strict=True)):
        others_agree = x[:dim] + x[dim + 1 :] == out[:dim] + out[dim + 1 :]
        if others_agree and total != size and _makes(size, total, repeats[0]):
            return dim
    return None


def _makes(size: int, total: int, repeats: int) -> bool:
    """A number for each row makes any total, one number for all of them a multiple."""
    return size > 0 and (repeats == size or (repeats == 1 and total % size == 0))


def _repeat_interleave_build(case: Case, make: TensorMaker) -> Call:
    """As equal repeats as the total allows; torch is told the total, so that it need not wait."""
    (x, repeats), (dim, out) = case.inputs or (), (_dim(case) or 0, output_shape(case) or ())
    (count,) = input_shape(case, _REPEATS)
    rows = out[dim] * count // input_shape(case, 0)[dim]
    numbers = make.full((count,), repeats.dtype, rows // count)
    numbers[: rows % count] += 1
    return Call((make.normal(x.shape or (), x.dtype), numbers, dim, out[dim]))


def _run(repeat: Any, x: Any, repeats: Any, dim: int, total: int) -> Any:
    if x.dim() == 1:
        return repeat(x, repeats, output_size=total)
    return repeat(x, repeats, dim=dim, output_size=total)


def _repeat_interleave_reference(torch: Any, x: Any, repeats: Any, dim: int, total: int) -> Any:
    return _run(torch.repeat_interleave, x, repeats, dim, total)


REPEAT_INTERLEAVE = OpSpec(
    kernel="RepeatInterleave",
    call="torch.repeat_interleave",
    assumes="each row as often",
    slots=("x", "repeats"),
    reference=_repeat_interleave_reference,
    build=_repeat_interleave_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "an output is wanted that repeats make of the input along one dimension",
            lambda case: _dim(case) is not None,
        ),
        inputs_are(("INT32", "INT64"), (_REPEATS,)),
        one_dtype((0,)),
        not_bool((0,)),
    ),
    npu=NpuCall(run=_run),
    twins=("RepeatInterleaveV2",),
)


# A block of a tensor, copied out. A profile doesn't say where it starts: at the origin here.
#
# `npu_slice`, not a copy of the view: a block of whole rows is dense there, and would be moved by
# TensorMove.


def _slice_build(case: Case, make: TensorMaker) -> Call:
    block = tuple(slice(size) for size in output_shape(case) or ())
    return build_view(case, make, lambda whole: whole[block])


def _build_npu(case: Case, make: TensorMaker) -> Call:
    whole, sizes = (case.inputs or ())[0], list(output_shape(case) or ())
    return Call((make.normal(whole.shape or (), whole.dtype), [0] * len(sizes), sizes))


def _slice_fits(case: Case) -> bool:
    whole, block = input_shape(case, 0), output_shape(case)
    return (
        block is not None
        and len(block) == len(whole)
        and all(part <= size for part, size in zip(block, whole, strict=True))
    )


SLICE = OpSpec(
    kernel="Slice",
    call="torch_npu.npu_slice",
    slots=("x", "offsets", "sizes"),
    reference=copy,
    build=_slice_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted that lies within the input", _slice_fits),
        one_a_dimension(1),
        one_a_dimension(2),
        one_dtype((0,)),
    ),
    npu=NpuCall(build=_build_npu),
    twins=("SliceAiCore",),
)


# A copy of a tensor into another of the same shape and dtype.
TENSOR_MOVE = OpSpec(
    kernel="TensorMove",
    call="torch.Tensor.copy_",
    slots=("x",),
    reference=copy,
    build=build_copy,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint("the output wants the input's shape", lambda c: agrees(c, 0, input_shape(c, 0))),
        one_dtype((0,)),
    ),
    twins=("TensorMoveAiCore",),
)


# A tensor repeated along its dimensions, or along new ones in front.


def _multiples(case: Case) -> Shape | None:
    """How often each dimension of the output repeats the input; None where it does not."""
    x, out = input_shape(case, 0), output_shape(case) or ()
    if len(out) < len(x) or not elements(out) > elements(x) > 0:
        return None
    sizes = (1,) * (len(out) - len(x)) + x
    if any(whole % size for whole, size in zip(out, sizes, strict=True)):
        return None
    return tuple(whole // size for whole, size in zip(out, sizes, strict=True))


def _tile_build(case: Case, make: TensorMaker) -> Call:
    x = (case.inputs or ())[0]
    return Call((make.normal(x.shape or (), x.dtype), _multiples(case)))


def _tile_reference(torch: Any, x: Any, multiples: Any) -> Any:
    return x.repeat(multiples)


TILE = OpSpec(
    kernel="Tile",
    call="torch.Tensor.repeat",
    slots=("x", "multiples"),
    reference=_tile_reference,
    build=_tile_build,
    flops=no_flops,
    moves_data=True,
    constraints=(
        Constraint(
            "a larger output is wanted that repeats the input",
            lambda case: _multiples(case) is not None,
        ),
        one_a_dimension(1, of_output=True),
        one_dtype((0,)),
    ),
)


# Dimensions in another order, copied out.
#
# A profile tells both shapes, not the permutation: the first in lexicographic order that fits them
# and changes the order of the elements. Of 32,8,8 -> 8,32,8 it is (1, 0, 2), not (2, 0, 1).
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


def _transpose_build(case: Case, make: TensorMaker) -> Call:
    return build_view(case, make, lambda whole: whole.permute(_permutation(case)))


TRANSPOSE = OpSpec(
    kernel="Transpose",
    call="torch.Tensor.copy_",
    slots=("x", "permutation"),
    reference=copy,
    build=_transpose_build,
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
