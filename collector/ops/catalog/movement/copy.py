"""Operators that only move data: one copy into existing memory, in the real dtype.

`copy_` from a view launches the kernel that makes the view dense, and no other: CANN's `Contiguous`
uses Slice, Transpose or BroadcastTo where one of them fits, else AsStrided, and writes straight
into a dense target (source: CANN's open sources, ops-math; profiles of CANN 8.3 confirm it).
"""

from collections.abc import Callable, Iterator
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import picked_bytes
from collector.ops.slots import (
    broadcast,
    elements,
    input_shape,
    output_shape,
    output_slot,
    spelling,
)
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes


def copy(torch: Any, target: Any, source: Any) -> Any:
    """Copy the source into the target in one pass, with a conversion where their dtypes differ."""
    return target.copy_(source)


def build_copy(case: Case, make: TensorMaker) -> Call:
    """Build the input and memory for the output; where outputs are N/A, memory like the input."""
    (source,) = case.inputs or ()
    return Call(like.empty(output_slot(case) or source, make), like.normal(source, make))


def build_view(case: Case, make: TensorMaker, view: Callable[[Any], Any]) -> Call:
    """Build memory for the output, and a view of the first input.

    The other slots hold the numbers that describe the view."""
    source, target = (case.inputs or ())[0], (case.outputs or ())[0]
    return Call(like.empty(target, make), view(like.normal(source, make)))


# A copy of a view whose strides no other kernel can follow.
#
# A profile records the memory and the view's shape, not the strides. These are tried, in this
# order:
#
# * a block of each row with its first two dimensions exchanged, such as the query within a fused
#   projection whose heads come first. CANN copies it by AsStrided where one line is a multiple of
#   64 elements (else by Slice and Transpose);
# * rows as far apart as the memory allows, with the last row cut short, so that it is no Slice.
_LINE = 64


def _strides(case: Case) -> Shape | None:
    memory, view = elements(input_shape(case, 0)), output_shape(case)
    long = [dim for dim, size in enumerate(view or ()) if size > 1]
    if view is None or not long or not all(view):
        return None
    return _exchanged(view, long, memory) or _apart(view, long, memory)


def _exchanged(view: Shape, long: list[int], memory: int) -> Shape | None:
    """Return the strides of the exchanged block; `long` has the dimensions longer than 1."""
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


AS_STRIDED = OpSpec(
    kernel="AsStrided",
    call="torch.Tensor.copy_",
    signature="x T, sizes[s_rank], strides[s_rank], offset -> y T[*s]",
    build=lambda case, make: build_view(
        case, make, lambda x: x.as_strided(output_shape(case), _strides(case))
    ),
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        rules.reads(
            "expected memory that holds the output as a scattered view that no other kernel copies",
            _strides,
        ),
    ),
    twins=("AsStridedAiCore",),
)


_SOURCE = 4  # before it the sizes, strides and offset of the target, after it those of the source


def _target_strides(case: Case) -> Shape | None:
    """Return strides of rows as far apart as the memory allows; None if the source fills it."""
    view, memory = input_shape(case, _SOURCE), elements(input_shape(case, 0))
    first = next((dim for dim, size in enumerate(view) if size > 1), None)
    if first is None or not all(view):
        return None
    row = elements(view[first + 1 :])
    stride = memory // view[first]
    whole = (*_dense(view)[:first], stride, *_dense(view)[first + 1 :])
    return whole if stride > row else None


def _view_copy_build(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    memory, source = like.normal(slots[0], make), like.normal(slots[_SOURCE], make)
    return Call(memory, memory.as_strided(source.shape, _target_strides(case)), source)


def _view_copy_run(copy_into: Callable[..., Any], memory: Any, target: Any, source: Any) -> Any:
    copy_into(target, source)
    return memory


# A dense tensor that is written into a view of a larger memory: a part of the rows of a buffer. A
# profile records the memory and the sizes, not the strides. The slots are those of CANN's open
# sources; that the memory has one dimension is assumed.
VIEW_COPY = OpSpec(
    kernel="ViewCopy",
    call="torch.Tensor.copy_",
    assumes="rows as far apart as the memory allows",
    signature="y T[*memory], dst_size INT64[s_rank], dst_stride INT64[s_rank],"
    " dst_storage_offset INT64[#], x T[*s], src_size INT64[s_rank], src_stride INT64[s_rank],"
    " src_storage_offset INT64[#] -> y T[*memory]",
    reference=lambda torch, *tensors: _view_copy_run(torch.Tensor.copy_, *tensors),
    build=_view_copy_build,
    traffic=lambda case: 2 * (case.inputs or ())[_SOURCE].size_bytes,
    moves_data=True,
    npu=NpuCall(run=_view_copy_run),
    constraints=(
        rules.reads(
            "expected memory in which the rows of input 5 are apart: else another kernel copies",
            _target_strides,
        ),
    ),
)


def _broadcast_fits(case: Case) -> bool:
    x, out = input_shape(case, 0), output_shape(case)
    return out is not None and broadcast(x, out) == out and elements(out) > elements(x)


# A tensor repeated along dimensions of size 1, or along new leading dimensions.
BROADCAST_TO = OpSpec(
    kernel="BroadcastTo",
    call="torch.Tensor.copy_",
    # CANN broadcasts BOOL as INT32, between two casts
    signature="x T:number, shape[s_rank] -> y T[*s]",
    build=lambda case, make: build_view(case, make, lambda x: x.expand(output_shape(case))),
    moves_data=True,
    constraints=(
        Constraint("expected a larger output to which the input broadcasts", _broadcast_fits),
    ),
)


def _cast_dtype(case: Case, make: TensorMaker) -> Any:
    """Return torch's dtype of the output; torch has UINT64 for casts."""
    spelled = spelling(output_slot(case))
    return make.torch.uint64 if spelled == "UINT64" else make.dtype(spelled)


def _cast_build(case: Case, make: TensorMaker) -> Call:
    source = like.normal((case.inputs or ())[0], make)
    return Call(make.torch.empty_like(source, dtype=_cast_dtype(case, make)), source)


def _npu_build(case: Case, make: TensorMaker) -> Call:
    return Call(like.normal((case.inputs or ())[0], make), _cast_dtype(case, make))


def _converts(case: Case) -> bool:
    output = output_slot(case)
    return output is None or output.known_dtype != (case.inputs or ())[0].known_dtype


# Conversion to another dtype, that of the output.
CAST = OpSpec(
    kernel="Cast",
    call="torch.Tensor.to",
    signature="x[*s] -> y[*s]!",
    reference=copy,
    build=_cast_build,
    moves_data=True,
    packed_outputs={0: "UINT64"},
    constraints=(Constraint("expected an output with another dtype than the input", _converts),),
    npu=NpuCall(build=_npu_build),
    twins=("CastAiCore",),
    lookups=make_lookups(
        "aten.to.dtype",
        "aten._to_copy.default",
        "prims.convert_element_type.default",
        tc_input_count=1,
    ),
)


def _pad_v3_build(case: Case, make: TensorMaker) -> Call:
    """Build the paddings as torch expects them: the last dimension first, each as (front, end)."""
    x, out = (case.inputs or ())[0], output_shape(case) or ()
    added = [whole - size for whole, size in zip(out, input_shape(case, 0), strict=True)]
    paddings = [side for end in reversed(added) for side in (0, end)]
    return Call(like.normal(x, make), paddings)


def _pad_v3_fits(case: Case) -> bool:
    """Return whether padding adds elements: else CANN copies, and fills an empty input."""
    x, out = input_shape(case, 0), output_shape(case)
    return (
        out is not None
        and len(out) == len(x)
        and all(whole >= size for whole, size in zip(out, x, strict=True))
        and elements(out) > elements(x) > 0
    )


# A tensor with zeros appended. A profile does not record the paddings: at the ends here.
PAD_V3 = OpSpec(
    kernel="PadV3",
    call="torch.nn.functional.pad",
    # CANN pads BOOL as INT8, between two casts
    signature="x T:number[*s], paddings[2 * s_rank], value? -> y T",
    traffic=lambda case: dense_bytes(case),
    build=_pad_v3_build,
    moves_data=True,
    constraints=(Constraint("expected an output that holds the input and more", _pad_v3_fits),),
    twins=("PadV3AiCore",),
    lookups=make_lookups("aten.constant_pad_nd.default", tc_input_count=1),
    launched_by={"aclnnConstantPadNd": arguments_at(outputs=3)},
    shown={"paddings": "INT32"},
)

# Each row of a tensor repeated as often as a list says, along the one dimension in which the output
# differs: from sequences to tokens. RepeatInterleaveV2 where the input has several dimensions.
_REPEATS = 1


def _dim(case: Case) -> int | None:
    """Return the first dimension along which the repeats may turn the input into the output."""
    x, out, (repeats,) = input_shape(case, 0), output_shape(case), input_shape(case, _REPEATS)
    if out is None or len(out) != len(x):
        return None
    for dim, (size, total) in enumerate(zip(x, out, strict=True)):
        others_agree = x[:dim] + x[dim + 1 :] == out[:dim] + out[dim + 1 :]
        if others_agree and total != size and _makes(size, total, repeats):
            return dim
    return None


def _makes(size: int, total: int, repeats: int) -> bool:
    """One number for each row gives any total; one number for all rows gives a multiple."""
    return size > 0 and (repeats == size or (repeats == 1 and total % size == 0))


def _repeat_build(case: Case, make: TensorMaker) -> Call:
    """Build repeats that are as equal as the total allows.

    torch gets the total, so that it does not wait for the device."""
    (x, repeats), (dim, out) = case.inputs or (), (_dim(case) or 0, output_shape(case) or ())
    (count,) = input_shape(case, _REPEATS)
    rows = out[dim] * count // input_shape(case, 0)[dim]
    numbers = make.full((count,), repeats.dtype, rows // count)
    numbers[: rows % count] += 1
    return Call(like.normal(x, make), numbers, dim, out[dim])


def _run(repeat: Any, x: Any, repeats: Any, dim: int, total: int) -> Any:
    along = {} if x.dim() == 1 else {"dim": dim}
    return repeat(x, repeats, **along, output_size=total)


REPEAT_INTERLEAVE = OpSpec(
    kernel="RepeatInterleave",
    call="torch.repeat_interleave",
    assumes="each row as often",
    signature="x T:number, repeats integer[count] -> y T",
    build=_repeat_build,
    moves_data=True,
    constraints=(
        rules.reads("expected an output that repeats the input along one dimension", _dim),
    ),
    npu=NpuCall(run=_run),
    twins=("RepeatInterleaveV2",),
    lookups=(
        *make_lookups("aten.repeat_interleave.self_int", tc_input_count=1),
        *make_lookups("aten.repeat_interleave.self_Tensor", tc_input_count=2),
    ),
)


def _slice_build(case: Case, make: TensorMaker) -> Call:
    block = tuple(slice(size) for size in output_shape(case) or ())
    return build_view(case, make, lambda whole: whole[block])


def _build_npu(case: Case, make: TensorMaker) -> Call:
    whole, sizes = (case.inputs or ())[0], list(output_shape(case) or ())
    return Call(like.normal(whole, make), [0] * len(sizes), sizes)


def _slice_fits(case: Case) -> bool:
    whole, block = input_shape(case, 0), output_shape(case)
    return (
        block is not None
        and len(block) == len(whole)
        and all(part <= size for part, size in zip(block, whole, strict=True))
    )


# A block of a tensor, copied out. A profile does not record where it starts: at the origin here.
#
# The call is `npu_slice` and not a copy of the view: a block of whole rows at the origin is dense,
# and TensorMove would copy it. On A2 and A3 CANN 8.5 to 9.1 launch SliceV2 for some large blocks
# (ops-math, `IsSliceV2AiCoreSupport`).
SLICE = OpSpec(
    kernel="Slice",
    call="torch_npu.npu_slice",
    signature="x T[*s], offsets[s_rank], sizes[s_rank] -> y T",
    reference=copy,
    build=_slice_build,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(Constraint("expected an output that fits within the input", _slice_fits),),
    npu=NpuCall(build=_build_npu),
    twins=("SliceAiCore", "SliceV2"),
)

# A copy of a tensor into another of the same shape and dtype.
TENSOR_MOVE = OpSpec(
    kernel="TensorMove",
    call="torch.Tensor.copy_",
    signature="x T[*s] -> y T[*s]",
    build=build_copy,
    moves_data=True,
    twins=("TensorMoveAiCore",),
    lookups=(
        *make_lookups("aten.to.dtype", order=1, tc_input_count=1),
        *make_lookups(
            "aten.clone.default", "aten.copy.default", "aten.copy_.default", tc_input_count=1
        ),
    ),
)


def _multiples(case: Case) -> Shape | None:
    """Return how often the output repeats the input in each dimension; None where it does not."""
    x, out = input_shape(case, 0), output_shape(case) or ()
    if len(out) < len(x) or not elements(out) > elements(x) > 0:
        return None
    sizes = (1,) * (len(out) - len(x)) + x
    if any(whole % size for whole, size in zip(out, sizes, strict=True)):
        return None
    return tuple(whole // size for whole, size in zip(out, sizes, strict=True))


# A tensor repeated along its dimensions, or along new leading dimensions.
TILE = OpSpec(
    kernel="Tile",
    call="torch.Tensor.repeat",
    signature="x T, multiples[s_rank] -> y T[*s]",
    build=lambda case, make: Call(like.normal((case.inputs or ())[0], make), _multiples(case)),
    moves_data=True,
    constraints=(rules.reads("expected a larger output that repeats the input", _multiples),),
    lookups=make_lookups("aten.repeat.default", tc_input_count=1),
    launched_by={"aclnnRepeat": arguments_at(outputs=-1)},
)

# Dimensions in another order, copied out.
#
# A profile records both shapes, not the permutation. The choice is the first in lexicographic order
# that fits them and changes the order of the elements. For 32,8,8 -> 8,32,8 it is (1, 0, 2), not
# (2, 0, 1).
_MAX_DIMS = 8


def _fitting(source: Shape, target: Shape, chosen: Shape = ()) -> Iterator[Shape]:
    """Yield the permutations p with target[i] == source[p[i]], in lexicographic order."""
    if len(chosen) == len(target):
        yield chosen
        return
    for dim, size in enumerate(source):
        if dim not in chosen and size == target[len(chosen)]:
            yield from _fitting(source, target, (*chosen, dim))


def _permutation(case: Case) -> Shape | None:
    """Return the permutation; None where none fits, or where only dimensions of size 1 move."""
    source, target = input_shape(case, 0), output_shape(case)
    long = [dim for dim, size in enumerate(source) if size > 1]
    if target is None or sorted(target) != sorted(source):
        return None
    if len(source) > _MAX_DIMS or len(long) < 2:
        return None
    return next((p for p in _fitting(source, target) if [d for d in p if d in long] != long), None)


TRANSPOSE = OpSpec(
    kernel="Transpose",
    call="torch.Tensor.copy_",
    signature="x T[*s], permutation[s_rank] -> y T",
    build=lambda case, make: build_view(case, make, lambda x: x.permute(_permutation(case))),
    moves_data=True,
    constraints=(
        rules.reads(
            "expected an output with the input's dimensions, two longer than 1 of them exchanged",
            _permutation,
        ),
    ),
    twins=("TransposeAiCore",),
)


def _triangle(kernel: str, call: str, *operators: str) -> OpSpec:
    """Return the operator of one triangle of matrices; a profile does not record which diagonal."""
    return OpSpec(
        kernel=kernel,
        call=call,
        signature="x T[*batch, m, n] -> y T[*batch, m, n]",
        moves_data=True,
        lookups=make_lookups(*operators),
    )


# The lower or the upper triangle of matrices, such as causal masks, with zeros elsewhere.
TRIL, TRIU = (
    _triangle("Tril", "torch.tril", "aten.tril.default"),
    _triangle("Triu", "torch.triu", "aten.triu.default"),
)


def _reverse_build(case: Case, make: TensorMaker) -> Call:
    (count,) = input_shape(case, 1)
    return Call(like.normal((case.inputs or ())[0], make), [-1 - dim for dim in range(count)])


# Dimensions in reverse order. A profile does not record which: the last ones here.
REVERSE_V2 = OpSpec(
    kernel="ReverseV2",
    call="torch.flip",
    assumes="the last dimensions are reversed",
    signature="x T[*s], axis integer[axes] -> y T[*s] where 0 < axes <= s_rank",
    build=_reverse_build,
    moves_data=True,
    lookups=make_lookups("aten.flip.default", tc_input_count=1),
    launched_by={"aclnnFlip": arguments_at(outputs=2)},
)
