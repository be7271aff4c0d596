"""Writes of keys and values to paged caches, and reads from them."""

from dataclasses import replace
from functools import partial
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.cache._places import capacity, write_both
from collector.ops.launching import arguments_at, calls
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, distinct_numbers, equal_parts
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_TABLE, _LENGTHS, _KEY, _VALUE, _STARTS = 2, 3, 4, 5, 6


def _load_build(case: Case, make: TensorMaker) -> Call:
    key_cache, value_cache, table, lengths, key, value, *_ = case.inputs or ()
    cache, (requests, _) = input_shape(case, 0), input_shape(case, _TABLE)
    counts = equal_parts(input_shape(case, _KEY)[0], requests)
    blocks = _block_table(cache, input_shape(case, _TABLE), max(counts), make)
    summed = input_shape(case, _LENGTHS) != (requests,)
    return Call(
        like.normal(key_cache, make),
        like.normal(value_cache, make),
        blocks.to(make.dtype(table.dtype)),
        make.tensor((0, *cumulative_ends(counts)) if summed else counts, lengths.dtype),
        seq_starts=make.full((requests,), "INT32", 0) if given(case, _STARTS) else None,
        cumsum=summed,
        key=like.empty(key, make),
        value=like.empty(value, make),
        places=_places(blocks, counts, cache[1], make),
    )


def _block_table(cache: Shape, table: Shape, longest: int, make: TensorMaker) -> Any:
    """Return the blocks of each request, spread over the cache.

    No block belongs to two requests if there are enough blocks. Unused entries are block 0, as an
    engine pads them."""
    requests, width = table
    used = -(-longest // cache[1])
    blocks = distinct_numbers(make, requests * used, cache[0], "INT64")
    padding = make.full((requests, width - used), "INT64", 0)
    return make.torch.cat((blocks.view(requests, used), padding), 1)


def _places(blocks: Any, counts: Shape, block_size: int, make: TensorMaker) -> Any:
    """Return the position of each row in the cache, which the reference gathers by."""
    ids = make.tensor([i for count in counts for i in range(count)], "INT64")
    owners = make.tensor([n for n, count in enumerate(counts) for _ in range(count)], "INT64")
    return blocks[owners, ids // block_size] * block_size + ids % block_size


def _load_reference(
    torch: Any, key_cache: Any, value_cache: Any, table: Any, lengths: Any, **named: Any
) -> Any:
    places = named["places"]
    for cache, rows in ((key_cache, named["key"]), (value_cache, named["value"])):
        torch.index_select(cache.flatten(0, 1), 0, places, out=rows)
    return named["key"], named["value"]


def _load_traffic(case: Case) -> int:
    """Return the bytes: rows are read and written, the tables are read."""
    slots = case.inputs or ()
    tables = sum(slot.size_bytes for slot in (*slots[_TABLE:_KEY], *slots[_STARTS:]))
    return 2 * (slots[_KEY].size_bytes + slots[_VALUE].size_bytes) + tables


_LOAD = """key_cache T:half|INT8[pages, page, heads, d], value_cache T[pages, page, heads, d_value],
{} INT32[requests, table_width], {} INT32[requests]|[requests + 1],
key T[t, heads, d], value T[t, heads, d_value], {} INT32[requests]?
-> key T[t, heads, d], value T[t, heads, d_value] where t <= requests * table_width * page"""


# Gather of the keys and values of some requests from the blocks of the paged caches into rows.
PAGED_CACHE_LOAD_ND_KERNEL = OpSpec(
    kernel="PagedCacheLoadNdKernel",
    call="torch_npu.atb.npu_paged_cache_load",
    assumes="lengths in equal parts, pages spread over the whole pool",
    signature=_LOAD.format("block_table", "lengths", "starts"),
    reference=_load_reference,
    build=_load_build,
    traffic=_load_traffic,
    moves_data=True,
    npu=NpuCall(
        run=lambda api, *args, places, **named: api(*args, **named), needs=frozenset({Need.ATB})
    ),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"AtbPagedCacheLoad": arguments_at(outputs=4)},
)


def _gather_run(
    api: Any, *args: Any, places: Any, seq_starts: Any, cumsum: bool, key: Any, value: Any
) -> Any:
    api(*args, key, value, seq_offset=seq_starts, is_seq_lens_cumsum=cumsum)
    return key, value


# The same by CANN's own kernel: vLLM-Ascend calls it since its main of 2026-08, on A2 and A3 too.
GATHER_PA_KV_CACHE = replace(
    PAGED_CACHE_LOAD_ND_KERNEL,
    kernel="GatherPaKvCache",
    is_shown_otherwise=True,
    call="torch_npu.npu_gather_pa_kv_cache",
    signature=_LOAD.format("block_tables", "seq_lens", "seq_offset"),
    npu=NpuCall(run=_gather_run),
    launched_by={"aclnnGatherPaKvCache": arguments_at(outputs=4)},
)


_CACHES = "key_cache T[pages, page, heads, d], value_cache T[pages, page, heads, d_value]"


def _write_run(api: Any, *args: Any, **how: Any) -> Any:
    api(*args, **how)
    return args[2], args[3]


def _write_traffic(case: Case, key: int, value: int, places: int) -> int:
    """Return the bytes: keys, values and positions read, and these positions written."""
    slots = case.inputs or ()
    return 2 * (slots[key].size_bytes + slots[value].size_bytes) + slots[places].size_bytes


def _reshape_build(case: Case, make: TensorMaker) -> Call:
    *tensors, places = case.inputs or ()
    count, held = input_shape(case, 0)[0], capacity(input_shape(case, 2))
    return Call(
        *(like.normal(slot, make) for slot in tensors),
        distinct_numbers(make, count, held, places.dtype),
    )


# Keys and values of new tokens, written to their positions in the paged caches.
RESHAPE_AND_CACHE_ND_KERNEL = OpSpec(
    kernel="ReshapeAndCacheNdKernel",
    is_shown_otherwise=True,
    call="torch_npu._npu_reshape_and_cache",
    assumes="positions spread over the whole cache, each once",
    signature=f"""key T:half|INT8[t, heads, d], value T[t, heads, d_value], {_CACHES},
    slot_mapping INT32[t] -> {_CACHES} where t <= pages * page""",
    reference=write_both,
    build=_reshape_build,
    traffic=lambda case: _write_traffic(case, 0, 1, 4),
    moves_data=True,
    npu=NpuCall(run=_write_run, needs=frozenset({Need.ATB})),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.reshape_and_cache.default"),
    launched_by=calls("ReshapeAndCacheParam"),
)

# Keys and values of new tokens, written to their positions in the paged caches by CANN's own
# kernel.
#
# Compressed tokens (lengths, offsets) and caches in FRACTAL_NZ are not replayed.


def _scatter_build(case: Case, make: TensorMaker) -> Call:
    """Build the call in the function's order: keys and values, then caches."""
    key, key_cache, places, value, value_cache, *_ = case.inputs or ()
    count, held = input_shape(case, 0)[0], capacity(input_shape(case, 1))
    return Call(
        *(like.normal(s, make) for s in (key, value, key_cache, value_cache)),
        distinct_numbers(make, count, held, places.dtype),
    )


SCATTER_PA_KV_CACHE = OpSpec(
    kernel="ScatterPaKvCache",
    is_shown_otherwise=True,
    call="torch_npu.npu_scatter_pa_kv_cache",
    assumes="positions spread over the whole cache, each once",
    signature=f"""key T:half|INT8[t, heads, d], key_cache T[pages, page, heads, d],
    slot_mapping integer[t], value T[t, heads, d_value], value_cache T[pages, page, heads, d_value],
    -compress_lens, -compress_seq_offsets, -seq_lens -> {_CACHES} where t <= pages * page""",
    reference=write_both,
    build=_scatter_build,
    traffic=lambda case: _write_traffic(case, 0, 3, 2),
    moves_data=True,
    npu=NpuCall(run=partial(_write_run, cache_mode="Norm")),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"aclnnScatterPaKvCache": arguments_at(outputs=(1, 4))},
)
