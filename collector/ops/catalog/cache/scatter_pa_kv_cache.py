"""Keys and values of new tokens, written to their places in the paged caches, by CANN's own kernel.

Compressed tokens (lengths, offsets) and caches in FRACTAL_NZ are not replayed.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.cache._places import capacity, is_cache_of, write_both
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.parts.positions import distinct
from collector.ops.parts.serving import HALVES, left_out, nothing_empty, outputs_agree
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_COMPRESSED = frozenset({5, 6, 7})


def _build(case: Case, make: TensorMaker) -> Call:
    """In the function's order: the caches come after keys and values."""
    key, key_cache, places, value, value_cache, *_ = case.inputs or ()
    count, held = input_shape(case, 0)[0], capacity(input_shape(case, 1))
    return Call(
        (
            *(make.normal(s.shape or (), s.dtype) for s in (key, value, key_cache, value_cache)),
            distinct(make, count, held, places.dtype),
        )
    )


def _npu_run(api: Any, *args: Any) -> Any:
    """The function gives nothing: it writes to the caches."""
    api(*args, cache_mode="Norm")
    return args[2], args[3]


def _traffic(case: Case) -> int:
    """Keys, values and places are read; the caches are written where the places are."""
    key, _, places, value, *_ = case.inputs or ()
    return 2 * (key.size_bytes + value.size_bytes) + places.size_bytes


def _fits(case: Case) -> bool:
    key, key_cache, _, value, value_cache = (input_shape(case, i) for i in range(5))
    return (
        is_cache_of(case, 1, 0, 2)
        and is_cache_of(case, 4, 3, 2)
        and key[:2] == value[:2]
        and key_cache[:2] == value_cache[:2]
        and outputs_agree(case, key_cache, value_cache)
    )


OP = OpSpec(
    kernel="ScatterPaKvCache",
    call="torch_npu.npu_scatter_pa_kv_cache",
    assumes="places all over the cache, each once",
    slots=(
        *("key", "key_cache", "slot_mapping", "value", "value_cache"),
        *("compress_lens", "compress_seq_offsets", "seq_lens"),
    ),
    optional=_COMPRESSED,
    reference=write_both,
    build=_build,
    flops=no_flops,
    traffic=_traffic,
    moves_data=True,
    npu=NpuCall(run=_npu_run),
    constraints=(
        left_out(_COMPRESSED, "compressed tokens"),
        Constraint(
            "keys and values (T,N,D), caches (blocks, block size, N, D) with room for them, and a "
            "place for each token are wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are((*HALVES, "INT8"), (0,)),
        inputs_are(("INT32", "INT64"), (2,)),
        one_dtype((0, 1, 3, 4), (0, 1)),
    ),
)
