"""A block of a tensor, copied out. A profile doesn't say where it starts: at the origin here.

`npu_slice`, not a copy of the view: a block of whole rows is dense there, and would be moved by
TensorMove.
"""

from collector.case import Case
from collector.ops.catalog.movement._copy import build_view, copy
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, one_a_dimension, picked_bytes
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    block = tuple(slice(size) for size in output_shape(case) or ())
    return build_view(case, make, lambda whole: whole[block])


def _build_npu(case: Case, make: TensorMaker) -> Call:
    whole, sizes = (case.inputs or ())[0], list(output_shape(case) or ())
    return Call((make.normal(whole.shape or (), whole.dtype), [0] * len(sizes), sizes))


def _fits(case: Case) -> bool:
    whole, block = input_shape(case, 0), output_shape(case)
    return (
        block is not None
        and len(block) == len(whole)
        and all(part <= size for part, size in zip(block, whole, strict=True))
    )


OP = OpSpec(
    kernel="Slice",
    call="torch_npu.npu_slice",
    slots=("x", "offsets", "sizes"),
    reference=copy,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted that lies within the input", _fits),
        one_a_dimension(1),
        one_a_dimension(2),
        one_dtype((0,)),
    ),
    npu=NpuCall(build=_build_npu),
    twins=("SliceAiCore",),
)
