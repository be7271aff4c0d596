"""Rotary position embeddings with tables of half-width cos and sin, in vLLM's format."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.rotary._tables import make_rotary_table, rotate_first_dims
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import make_positions
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

# Rotary positions of queries and keys in place, looked up in a table by each token's position.
#
# vLLM-Ascend launches this kernel up to 0.18, and with Triton; later versions launch another kernel
# from the same function.
_POSITIONS = 3


def _triton_build(case: Case, make: TensorMaker) -> Call:
    query, key, table, *_ = case.inputs or ()
    (tokens, _, head_size), (rows, size) = input_shape(case, 0), input_shape(case, 2)
    positions = given(case, _POSITIONS)
    places = make.integers((tokens,), positions.dtype if positions else "INT64", 0, rows)
    queries_and_keys = [like.normal(slot, make) for slot in (query, key)]
    whole = make_rotary_table(make, rows, size, table.dtype)
    return Call(places, *queries_and_keys, whole, head_size, size, True)


def _triton_reference(
    torch: Any, positions: Any, query: Any, key: Any, table: Any, *sizes_and_layout: Any
) -> Any:
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    return rotate_first_dims(torch, query, cos, sin), rotate_first_dims(torch, key, cos, sin)


def _triton_traffic(case: Case) -> int:
    """Return the bytes: queries and keys read and written, and a table row for each token."""
    query, key, table, *_ = case.inputs or ()
    tokens, rows = input_shape(case, 0)[0], input_shape(case, 2)[0]
    return 2 * (query.size_bytes + key.size_bytes) + tokens * table.size_bytes // rows


TRITON_ROPE = OpSpec(
    kernel="_triton_rope",
    call="torch.ops.vllm.npu_rotary_embedding",
    assumes="any position of the table for each token",
    signature="query Q:float[t, heads, d], key K:float[t, kv_heads, d], "
    "cos_sin_cache float[rows, r], positions integer[t]?"
    " -> query Q[t, heads, d], key K[t, kv_heads, d] where r <= d, r % 2 == 0",
    reference=_triton_reference,
    build=_triton_build,
    operations="3 * t * (heads + kv_heads) * d",
    traffic=_triton_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=(
        *make_lookups("tensor_cast.apply_rope.default", tc_input_count=2),
        *make_lookups("tensor_cast.apply_rope_single.default", tc_input_count=1),
    ),
    launched_by={
        "triton._triton_rope": arguments_at(key=2, cos_sin_cache=8, positions=10, outputs=(0, 2))
    },
)


def _siso_build(case: Case, make: TensorMaker) -> Call:
    x, cos, _ = case.inputs or ()
    positions = make_positions(make, cos.shape or (), cos.dtype)
    size = input_shape(case, 1)[1]
    return Call(like.normal(x, make), *positions, rope_dim=size)


def _siso_reference(torch: Any, x: Any, cos: Any, sin: Any, *, rope_dim: int) -> Any:
    """Rotate x; the kernel reads only the first half of cos and sin."""
    half = rope_dim // 2
    return rotate_first_dims(torch, x, cos[:, None, :half], sin[:, None, :half])


def _siso_traffic(case: Case) -> int:
    x, cos, _ = case.inputs or ()
    return 2 * x.size_bytes + cos.size_bytes


# Rotary positions of one tensor in place, with cos and sin for each token.
#
# vLLM-Ascend has no operator for it: its sparse attention calls the Python function.
TRITON_ROPE_SISO = OpSpec(
    kernel="_triton_rope_siso",
    call="vllm_ascend.ops.triton.rope.rope_forward_triton_siso",
    signature="x T:float[t, heads, d], cos C:float[t, r], sin C[t, r] -> x T[t, heads, d]"
    " where r <= d, r % 2 == 0",
    reference=_siso_reference,
    build=_siso_build,
    operations="3 * t * heads * d",
    traffic=_siso_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(rules.NOTHING_EMPTY,),
    lookups=make_lookups("tensor_cast.apply_rope_single.default", order=4, tc_input_count=1),
)

_COS_SIN = 3


def _mrope_build(case: Case, make: TensorMaker) -> Call:
    positions, query, key, table = case.inputs or ()
    rows, size = input_shape(case, _COS_SIN)
    return Call(
        make.integers(input_shape(case, 0), positions.dtype, 0, rows),
        like.normal(query, make),
        like.normal(key, make),
        make_rotary_table(make, rows, size, table.dtype),
        size,
    )


def _mrope_reference(
    torch: Any, positions: Any, query: Any, key: Any, table: Any, size: int
) -> Any:
    cos, sin = (half.unsqueeze(1) for half in table[positions].chunk(2, -1))
    turned = (
        rotate_first_dims(torch, x.view(len(x), -1, size).clone(), cos, sin) for x in (query, key)
    )
    return tuple(x.flatten(1) for x in turned)


def _mrope_traffic(case: Case) -> int:
    positions, query, key, table = case.inputs or ()
    rows = input_shape(case, _COS_SIN)[0]
    picked = positions.numel * table.size_bytes // rows
    return 2 * (query.size_bytes + key.size_bytes) + positions.size_bytes + picked


# Rotary positions of queries and keys by a table, half mode, for heads that are rotated whole.
# Positions of images (three for each token) are not replayed.
ROPE_WITH_SIN_COS_CACHE = OpSpec(
    kernel="RopeWithSinCosCache",
    call="torch_npu.npu_mrope",
    assumes="any position of the table for each token",
    signature="positions integer[t], query T:float[t, queries], key T[t, keys], "
    "cos_sin_cache T[rows, d] -> query T[t, queries], key T[t, keys]"
    " where rows * d * queries * keys > 0, d % 2 == 0, queries % d == 0, keys % d == 0",
    reference=_mrope_reference,
    build=_mrope_build,
    operations="3 * t * (queries + keys)",
    traffic=_mrope_traffic,
    npu=NpuCall(run=lambda mrope, *args: mrope(*args, mrope_section=[0, 0, 0], rotary_mode="half")),
)
