"""Keys and values of new tokens, written to their places in the paged caches."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.cache._places import capacity, is_cache_of, write_both
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.parts.positions import distinct
from collector.ops.parts.serving import HALVES, nothing_empty, outputs_agree
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    *tensors, places = case.inputs or ()
    count, held = input_shape(case, 0)[0], capacity(input_shape(case, 2))
    return Call(
        (
            *(make.normal(slot.shape or (), slot.dtype) for slot in tensors),
            distinct(make, count, held, places.dtype),
        )
    )


def _npu_run(api: Any, *args: Any) -> Any:
    """The function gives nothing: it writes to the caches."""
    api(*args)
    return args[2], args[3]


def _traffic(case: Case) -> int:
    """Keys, values and places are read; the caches are written where the places are."""
    key, value, _, _, places = case.inputs or ()
    return 2 * (key.size_bytes + value.size_bytes) + places.size_bytes


def _fits(case: Case) -> bool:
    key, value, key_cache, value_cache = (input_shape(case, i) for i in range(4))
    return (
        is_cache_of(case, 2, 0, 4)
        and is_cache_of(case, 3, 1, 4)
        and key[:2] == value[:2]
        and key_cache[:2] == value_cache[:2]
        and outputs_agree(case, key_cache, value_cache)
    )


OP = OpSpec(
    kernel="ReshapeAndCacheNdKernel",
    call="torch_npu._npu_reshape_and_cache",
    assumes="places all over the cache, each once",
    slots=("key", "value", "key_cache", "value_cache", "slot_mapping"),
    reference=write_both,
    build=_build,
    flops=no_flops,
    traffic=_traffic,
    moves_data=True,
    npu=NpuCall(run=_npu_run, needs=frozenset({Need.ATB})),
    constraints=(
        Constraint(
            "keys and values (T,N,D), caches (blocks, block size, N, D) with room for them, and a "
            "place for each token are wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are((*HALVES, "INT8"), (0,)),
        inputs_are(("INT32",), (4,)),
        one_dtype((0, 1, 2, 3), (0, 1)),
    ),
)
