"""A block of a tensor, copied out. A profile doesn't say where it starts: at the origin here."""

from collector.case import Case
from collector.ops.catalog._copy import copy, no_flops, place
from collector.ops.dtypes import one_dtype
from collector.ops.slots import input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    source, target = (case.inputs or ())[0], (case.outputs or ())[0]
    whole = make.normal(source.shape or (), source.dtype)
    block = whole[tuple(slice(size) for size in target.shape or ())]
    return Call((place(target, make), block))


def _traffic(case: Case) -> int:
    """The block is read and written; the rest of the tensor is not touched."""
    block = output_slot(case)
    positions = sum(slot.size_bytes for slot in (case.inputs or ())[1:])
    return positions + (2 * block.size_bytes if block else 0)


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
    traffic=_traffic,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted that lies within the input", _fits),
        one_dtype((0,)),
    ),
)
