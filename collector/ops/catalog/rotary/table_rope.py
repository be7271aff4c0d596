"""Rotary position embeddings with tables of half-width cos and sin, in vLLM's format."""

import re
from math import gcd, tau
from typing import Any

from collector.model.case import Case
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.tensors import make_positions, per_element
from collector.ops.slots import elements, given, input_shape, output_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# Tables of half-width cos and sin, in vLLM's format, and rotation by them.


def make_table(make: TensorMaker, rows: int, size: int, dtype: str) -> Any:
    """Return a table with one row per position: cos, then sin, as in vLLM."""
    angles = make.uniform((rows, size // 2), "FLOAT", 0.0, tau)
    return make.torch.cat((angles.cos(), angles.sin()), -1).to(make.dtype(dtype))


def rotate_first_dims(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotate the first dimensions of x by half-width cos and sin, in float32 and in place."""
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    x[..., : 2 * half] = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return x


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
    whole = make_table(make, rows, size, table.dtype)
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


def _triton_fits(case: Case) -> bool:
    query, key, table = (input_shape(case, i) for i in range(3))
    if len(query) != 3 or len(key) != 3 or len(table) != 2 or table[1] % 2:
        return False
    positions = given(case, _POSITIONS)
    return (
        (key[0], key[2]) == (query[0], query[2])
        and table[1] <= query[2]
        and (positions is None or positions.shape == query[:1])
        and outputs_agree(case, query, key)
    )


TRITON_ROPE = OpSpec(
    kernel="_triton_rope",
    call="torch.ops.vllm.npu_rotary_embedding",
    assumes="any position of the table for each token",
    slots=("query", "key", "cos_sin_cache", "positions"),
    optional=frozenset({_POSITIONS}),
    reference=_triton_reference,
    build=_triton_build,
    flops=lambda case: 3 * sum(elements(input_shape(case, i)) for i in range(2)),
    traffic=_triton_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected queries and keys (T,N,D), and a table (positions, D or less, even)",
            _triton_fits,
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0, 1, 2)),
        rules.inputs_are(("INT32", "INT64"), (_POSITIONS,)),
        rules.one_dtype((0,), (0,)),
        rules.one_dtype((1,), (1,)),
    ),
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


def _siso_fits(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    if len(x) != 3 or len(cos) != 2 or cos != sin or cos[1] % 2:
        return False
    return cos[0] == x[0] and cos[1] <= x[2] and outputs_agree(case, x)


# Rotary positions of one tensor in place, with cos and sin for each token.
#
# vLLM-Ascend has no operator for it: its sparse attention calls the Python function.
TRITON_ROPE_SISO = OpSpec(
    kernel="_triton_rope_siso",
    call="vllm_ascend.ops.triton.rope.rope_forward_triton_siso",
    slots=("x", "cos", "sin"),
    reference=_siso_reference,
    build=_siso_build,
    flops=per_element(3),
    traffic=_siso_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("expected x (T,N,D), and cos and sin (T, D or less, even)", _siso_fits),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0, 1)),
        rules.one_dtype((0,), (0,)),
        rules.one_dtype((1, 2), ()),
    ),
)

# A projection's row split into queries, keys and values; queries and keys normalised and rotated.
#
# A profile names the projection and the size of the rotation, in some cases also the table of
# positions; the heads follow from the outputs. Where only part of a head is rotated, the column
# `Runtime head_dim` records the size of a head. vLLM-Ascend uses this kernel for few tokens and
# another one for many.
_EPSILON = 1e-6
_FEWEST_ROWS = 2048  # of a table that is not in the row
_TABLE = 2
_HEAD = RUNTIME_PREFIX + "head_dim"
_SIZE = re.compile(r"[1-9][0-9]{0,5}")


def head_size(width: int, narrow: int, rotary: int, recorded_size: str | None = None) -> int:
    """Return the size of a head: the recorded one, if it divides queries and keys; else 0.

    Without a recorded size: the rotation's size where it divides both, or the next larger common
    divisor."""
    if recorded_size is not None:
        size = int(recorded_size) if _SIZE.fullmatch(recorded_size) else 0
        return 0 if size < rotary or width % size or narrow % size else size
    common = gcd(width, narrow)
    return next((size for size in range(rotary, common + 1) if common % size == 0), 0)


def _widths(case: Case) -> tuple[int, int, int]:
    """Return the widths of queries, keys and the rotation; 0 where the row does not record one."""
    query, key, rotary = output_shape(case, 0), output_shape(case, 1), input_shape(case, 1)
    sizes = [shape[-1] if shape else 0 for shape in (query, key, rotary)]
    return sizes[0], sizes[1], sizes[2]


def _rows(case: Case) -> int:
    tables = [shape[0] for shape in (input_shape(case, 1), input_shape(case, _TABLE)) if shape[1:]]
    return tables[0] if tables else max(input_shape(case, 0)[0], _FEWEST_ROWS)


def _split_build(case: Case, make: TensorMaker) -> Call:
    qkv, rotary, *_ = case.inputs or ()
    queries, keys, size = _widths(case)
    rows, head = _rows(case), head_size(queries, keys, size, case.attribute(_HEAD))
    return Call(
        input=like.normal(qkv, make),
        cos_sin_cache=make_table(make, rows, size, rotary.dtype),
        positions=make.integers(input_shape(case, 0)[:1], "INT64", 0, rows),
        q_weight=make.normal((head,), qkv.dtype),
        k_weight=make.normal((head,), qkv.dtype),
        q_hidden_size=queries,
        kv_hidden_size=keys,
        head_dim=head,
        eps=_EPSILON,
    )


def _split_reference(torch: Any, **given: Any) -> Any:
    widths = [given["q_hidden_size"], given["kv_hidden_size"], given["kv_hidden_size"]]
    *queries_and_keys, value = given["input"].split(widths, -1)
    table = given["cos_sin_cache"].index_select(0, given["positions"])
    cos, sin = table.float().unsqueeze(1).chunk(2, -1)
    results = []
    for x, weight in zip(queries_and_keys, (given["q_weight"], given["k_weight"]), strict=True):
        heads = x.unflatten(-1, (-1, given["head_dim"])).float()
        rstd = heads.square().mean(-1, keepdim=True).add_(given["eps"]).rsqrt_()
        turned = rotate_first_dims(torch, (heads * rstd).mul_(weight), cos, sin)
        results.append(turned.flatten(-2).to(x.dtype))
    return *results, value.contiguous()


def _flops(case: Case) -> int:
    """Return the operations: per element of queries and keys 4 to normalise and 3 to rotate."""
    queries, keys, _ = _widths(case)
    return 7 * input_shape(case, 0)[0] * (queries + keys)


def _split_traffic(case: Case) -> int:
    """Return the bytes: the row read and written, and a row of the table for each token."""
    qkv, rotary = (case.inputs or ())[:2]
    read = input_shape(case, 0)[0] * _widths(case)[2]
    return 2 * qkv.size_bytes + rules.accepted(rotary.known_dtype).bytes_of(read)


def _split_fits(case: Case) -> bool:
    qkv, rotary, table = (input_shape(case, i) for i in range(3))
    queries, keys, size = _widths(case)
    if len(qkv) != 2 or len(rotary) not in (1, 2) or len(table) not in (0, 1, 2):
        return False
    if not queries or not keys or size < 2 or size % 2 or qkv[1] != queries + 2 * keys:
        return False
    is_table = table[1:] in ((), (size,))
    return is_table and outputs_agree(case, (qkv[0], queries), (qkv[0], keys), (qkv[0], keys))


def _heads_fit(case: Case) -> bool:
    queries, keys, size = _widths(case)
    return queries % keys == 0 and head_size(queries, keys, size, case.attribute(_HEAD)) > 0


SPLIT_QKV_RMSNORM_ROPE_KERNEL = OpSpec(
    kernel="split_qkv_rmsnorm_rope_kernel",
    call="torch.ops.vllm.qkv_rmsnorm_rope",
    assumes="any position of the table for each token",
    slots=("qkv", "rope", "table"),
    optional=frozenset({_TABLE}),
    reference=_split_reference,
    build=_split_build,
    flops=_flops,
    traffic=_split_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected a projection (T, queries + keys + values) with an output for each part, "
            "and an even size of the rotation",
            _split_fits,
        ),
        Constraint(
            "expected a head size that divides queries and keys (the rotation's size, the "
            "next larger divisor, or a larger one from Runtime head_dim), and keys that "
            "divide queries",
            _heads_fit,
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0, 1)),
        rules.inputs_are((*rules.FLOATS, "INT32", "INT64"), (_TABLE,)),
        rules.one_dtype((0,), (0, 1, 2)),
    ),
)


_QUERY, _KEY, _COS_SIN = range(1, 4)


def _mrope_build(case: Case, make: TensorMaker) -> Call:
    positions, query, key, table = case.inputs or ()
    rows, size = input_shape(case, _COS_SIN)
    return Call(
        make.integers(input_shape(case, 0), positions.dtype, 0, rows),
        like.normal(query, make),
        like.normal(key, make),
        make_table(make, rows, size, table.dtype),
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


def _mrope_fits(case: Case) -> bool:
    positions, query, key, table = (input_shape(case, i) for i in range(4))
    if len(positions) != 1 or len(table) != 2 or 0 in table or table[1] % 2:
        return False
    widths = [x[1] for x in (query, key) if len(x) == 2 and x[0] == positions[0]]
    is_whole = len(widths) == 2 and all(w and w % table[1] == 0 for w in widths)
    return is_whole and outputs_agree(case, query, key)


# Rotary positions of queries and keys by a table, half mode, for heads that are rotated whole.
# Positions of images (three for each token) are not replayed.
ROPE_WITH_SIN_COS_CACHE = OpSpec(
    kernel="RopeWithSinCosCache",
    call="torch_npu.npu_mrope",
    assumes="any position of the table for each token",
    slots=("positions", "query", "key", "cos_sin_cache"),
    reference=_mrope_reference,
    build=_mrope_build,
    flops=lambda case: 3 * sum(elements(input_shape(case, i)) for i in (_QUERY, _KEY)),
    traffic=_mrope_traffic,
    npu=NpuCall(run=lambda mrope, *args: mrope(*args, mrope_section=[0, 0, 0], rotary_mode="half")),
    constraints=(
        Constraint(
            "expected positions (T), queries and keys (T, heads of D), and a table (positions, D)",
            _mrope_fits,
        ),
        rules.inputs_are(rules.INTEGERS, (0,)),
        rules.inputs_are(rules.FLOATS, (_QUERY, _KEY, _COS_SIN)),
        rules.one_dtype((_QUERY, _KEY, _COS_SIN), (0, 1)),
    ),
)
