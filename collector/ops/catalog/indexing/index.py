"""Parts of a tensor, looked up by number in one dimension or in several that follow each other:
`x[i, j]`, or `x[:, i]` where the flags tell that a dimension is kept."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import (
    dense_enough,
    integer_indices,
    kept_dims,
    looked_up,
)
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, picked_bytes
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_FLAGS, _INDICES = 1, 3
_TAIL = 32


def _build(case: Case, make: TensorMaker) -> Call:
    x, _, _, *indices = case.inputs or ()
    kept = kept_dims(case, _FLAGS, _INDICES)
    sizes = input_shape(case, 0)[kept:]
    numbers = [
        make.integers(index.shape or (), index.dtype, 0, size)
        for index, size in zip(indices, sizes, strict=False)
    ]
    return Call((make.normal(x.shape or (), x.dtype), [None] * kept + numbers))


def _reference(torch: Any, x: Any, indices: Any) -> Any:
    return torch.ops.aten.index(x, indices)


def _fits(case: Case) -> bool:
    found = looked_up(case, _FLAGS, _INDICES)
    return found is not None and output_shape(case) == found


OP = OpSpec(
    kernel="Index",
    call="torch.ops.aten.index",
    assumes="all over the tensor, each place as likely",
    slots=("x", "indexed_sizes", "indexed_strides", "indices"),
    variadic=True,
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        integer_indices(_INDICES),
        Constraint("an output is wanted with what the indices name", _fits),
        dense_enough(_FLAGS, _INDICES, _TAIL),
        one_dtype((0,)),
    ),
)
