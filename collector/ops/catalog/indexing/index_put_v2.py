"""Parts of a tensor replaced where indices tell, in place: `x[i, j] = value`.

A profile does not tell whether they are added instead: here they are not. No index repeats where
there are enough places: a cache has one slot for each token.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import (
    dense_enough,
    indices_of,
    integer_indices,
    kept_dims,
    looked_up,
)
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, placed_bytes
from collector.ops.parts.positions import distinct_coordinates
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_VALUE, _FLAGS, _INDICES = 1, 2, 4
_TAIL = 1024
_ATOMIC = ("FLOAT", "FLOAT16", "DT_BF16", "INT32", "INT8", "BOOL")
_OTHERS = ("INT64", "UINT8")
_FEW, _SHORT = 100, 128


def _build(case: Case, make: TensorMaker) -> Call:
    x, value, _, _, index, *_ = case.inputs or ()
    kept, count = kept_dims(case, _FLAGS, _INDICES), len(indices_of(case, _INDICES))
    sizes = input_shape(case, 0)[kept : kept + count]
    indices = distinct_coordinates(make, index.shape or (), sizes, index.dtype)
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            [None] * kept + indices,
            make.normal(value.shape or (), value.dtype),
        )
    )


def _reference(torch: Any, x: Any, indices: Any, value: Any) -> Any:
    return torch.ops.aten.index_put_(x, indices, value)


def _fits(case: Case) -> bool:
    named = looked_up(case, _FLAGS, _INDICES)
    return named == input_shape(case, _VALUE) and agrees(case, 0, input_shape(case, 0))


def _is_on_vector_cores(case: Case) -> bool:
    """What A2 and A3 cannot add atomically goes to their AI CPU unless it is small."""
    dtype, index = (case.inputs or ())[0].known_dtype, (case.inputs or ())[_INDICES]
    end = kept_dims(case, _FLAGS, _INDICES) + len(indices_of(case, _INDICES))
    tail = elements(input_shape(case, 0)[end:])
    is_small = index.numel <= _FEW and tail <= _SHORT
    return is_small or (dtype is not None and dtype.spelling in _ATOMIC)


OP = OpSpec(
    kernel="IndexPutV2",
    call="torch.ops.aten.index_put_",
    assumes="all over the tensor, each place once where there are enough",
    slots=("x", "value", "indexed_sizes", "indexed_strides", "indices"),
    variadic=True,
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: placed_bytes(case, _VALUE),
    moves_data=True,
    constraints=(
        integer_indices(_INDICES),
        Constraint(
            "a value is wanted with what the indices name, and an output like the input", _fits
        ),
        dense_enough(_FLAGS, _INDICES, _TAIL),
        inputs_are((*_ATOMIC, *_OTHERS), (0,)),
        Constraint(
            f"{' or '.join(_OTHERS)} wants {_FEW} indices at most, and {_SHORT} elements behind",
            _is_on_vector_cores,
        ),
        one_dtype((0, _VALUE)),
    ),
)
