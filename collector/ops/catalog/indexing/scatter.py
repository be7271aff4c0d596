"""A part of each batch of a cache replaced, in place, from a position of its own: keys and values
of a decode step in a graph."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, placed_bytes
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def _axis(case: Case) -> int | None:
    """The one dimension, behind the batch, in which the updates are shorter; None where there is
    none, or where they fit several."""
    cache, updates = input_shape(case, 0), input_shape(case, 2)
    if len(cache) != len(updates) or len(cache) < 2 or cache[0] != updates[0]:
        return None
    shorter = [i for i, size in enumerate(cache) if updates[i] != size]
    fits = len(shorter) == 1 and 0 < updates[shorter[0]] < cache[shorter[0]]
    return shorter[0] if fits else None


def _build(case: Case, make: TensorMaker) -> Call:
    """Each batch at a place of its own, all over the cache."""
    cache, indices, updates = case.inputs or ()
    axis = _axis(case) or 0
    room = input_shape(case, 0)[axis] - input_shape(case, 2)[axis]
    return Call(
        (
            make.normal(cache.shape or (), cache.dtype),
            make.integers(indices.shape or (), indices.dtype, 0, room + 1),
            make.normal(updates.shape or (), updates.dtype),
            axis,
        )
    )


def _reference(torch: Any, cache: Any, indices: Any, updates: Any, axis: int) -> Any:
    steps = torch.arange(updates.shape[axis], device=updates.device)
    along = [1] * updates.dim()
    starts = indices.long().view(-1, *along[1:])
    along[axis] = -1
    return cache.scatter_(axis, (starts + steps.view(along)).expand(updates.shape), updates)


OP = OpSpec(
    kernel="Scatter",
    call="torch_npu.scatter_update_",
    assumes="any place of the cache for each batch",
    slots=("x", "indices", "updates"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: placed_bytes(case, 2),
    moves_data=True,
    constraints=(
        Constraint(
            "an index for each batch is wanted, updates like the input but shorter in one "
            "dimension, and an output like the input",
            lambda case: (
                _axis(case) is not None
                and input_shape(case, 1) == input_shape(case, 0)[:1]
                and agrees(case, 0, input_shape(case, 0))
            ),
        ),
        inputs_are(INTEGERS, (1,)),
        one_dtype((0, 2)),
    ),
    npu=NpuCall(graph=GraphCall(takes=lambda case: True)),
)
