"""Kernels that split a projection into queries, keys and values, and normalise and rotate them."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops import rules
from collector.ops.catalog.rotary._tables import head_size, make_rotary_table, rotate_first_dims
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import make_positions
from collector.ops.slots import given, input_shape, output_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

# By a table of positions.
#
# A profile names the projection and the size of the rotation, in some cases also the table; the
# heads follow from the outputs. Where only part of a head is rotated, the column `Runtime head_dim`
# records the size of a head. vLLM-Ascend uses this kernel for few tokens and another one for many.
_EPSILON = 1e-6
_FEWEST_ROWS = 2048  # of a table that is not in the row
_TABLE = 2
_HEAD = RUNTIME_PREFIX + "head_dim"
# per element of queries and keys 4 to normalise and 3 to rotate
_OPERATIONS = "7 * t * (queries + keys)"


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
        cos_sin_cache=make_rotary_table(make, rows, size, rotary.dtype),
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


def _split_traffic(case: Case) -> int:
    """Return the bytes: the row read and written, and a row of the table for each token."""
    qkv, rotary = (case.inputs or ())[:2]
    read = input_shape(case, 0)[0] * _widths(case)[2]
    return 2 * qkv.size_bytes + rules.accepted(rotary.known_dtype).bytes_of(read)


def _heads_fit(case: Case) -> bool:
    queries, keys, size = _widths(case)
    return head_size(queries, keys, size, case.attribute(_HEAD)) > 0


SPLIT_QKV_RMSNORM_ROPE_KERNEL = OpSpec(
    kernel="split_qkv_rmsnorm_rope_kernel",
    call="torch.ops.vllm.qkv_rmsnorm_rope",
    assumes="any position of the table for each token",
    signature="qkv T:float[t, n], rope float[size]|[rows, size], "
    "table float|integer[positions]|[positions, size]?"
    " -> query T[t, queries]!, key T[t, keys]!, value T[t, keys]"
    " where size >= 2, size % 2 == 0, queries > 0, keys > 0, n == queries + 2 * keys, "
    "queries % keys == 0",
    reference=_split_reference,
    build=_split_build,
    operations=_OPERATIONS,
    traffic=_split_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected a head size that divides queries and keys (the rotation's size, the "
            "next larger divisor, or a larger one from Runtime head_dim)",
            _heads_fit,
        ),
        rules.NOTHING_EMPTY,
    ),
    lookups=(
        *make_lookups("tensor_cast.apply_rope.default", order=1, tc_input_count=2),
        *make_lookups("tensor_cast.apply_rope_single.default", order=1, tc_input_count=1),
    ),
    launched_by={"triton.split_qkv_rmsnorm_rope_kernel": arguments_at(rope=4, slots=2, outputs=1)},
)


# By cos and sin of a token's three positions, of which each pair of numbers takes one, in turn:
# models of images and their decoders. Profiles show no tensors of it: its rows are those of a
# recording. A row does not record how many pairs each position has: a third of them.
_Q_WEIGHT, _Q_BIAS, _K_WEIGHT, _K_BIAS, _COS_SIN = range(1, 6)
_GATE = 3  # an output


def _mrope_build(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    tokens, size = input_shape(case, _COS_SIN)[1:]
    head = input_shape(case, _Q_WEIGHT)[0]
    queries, keys, _ = _widths(case)
    tables = [make_rotary_table(make, tokens, size, slots[_COS_SIN].dtype) for _ in range(3)]
    third = size // 6
    return Call(
        qkv=like.normal(slots[0], make),
        q_weight=like.uniform_like(slots[_Q_WEIGHT], make, 0.5, 1.5),
        k_weight=like.uniform_like(slots[_K_WEIGHT], make, 0.5, 1.5),
        cos_sin=make.torch.stack(tables),
        num_q_heads=queries // head,
        num_kv_heads=keys // head,
        head_size=head,
        eps=_EPSILON,
        mrope_section=[size // 2 - 2 * third, third, third],
        is_interleaved=True,
        rope_dim=size,
        q_bias=like.normal(given(case, _Q_BIAS), make),
        k_bias=like.normal(given(case, _K_BIAS), make),
        has_gate=bool(output_shape(case, _GATE)),
    )


def _chosen(halves: Any, sections: list[int]) -> Any:
    """Return cos or sin of one position for each pair: of the second and third in turn."""
    first, second, third = halves
    first = first.clone()
    for at, (other, size) in enumerate(zip((second, third), sections[1:], strict=True), 1):
        own = slice(at, 3 * size + 1, 3)
        first[:, own] = other[:, own]
    return first.unsqueeze(1)


def _normalised(x: Any, weight: Any, bias: Any, head: int, eps: float) -> Any:
    """Return heads of a mean square of 1, in float32."""
    heads = x.unflatten(-1, (-1, head)).float()
    heads = (heads * heads.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)
    return heads if bias is None else heads.add_(bias)


def _mrope_reference(torch: Any, **named: Any) -> Any:
    qkv, head, sections = named["qkv"], named["head_size"], named["mrope_section"]
    queries, keys = named["num_q_heads"] * head, named["num_kv_heads"] * head
    gates = queries if named["has_gate"] else 0
    query, key, value = qkv.split((queries + gates, keys, keys), -1)
    query, gate = query.unflatten(-1, (named["num_q_heads"], -1)).split(
        (head, head if gates else 0), -1
    )
    cos, sin = (_chosen(half.float(), sections) for half in named["cos_sin"].chunk(2, -1))
    results = []
    for x, name in ((query.flatten(1), "q"), (key, "k")):
        heads = _normalised(x, named[f"{name}_weight"], named[f"{name}_bias"], head, named["eps"])
        results.append(rotate_first_dims(torch, heads, cos, sin).flatten(1).to(qkv.dtype))
    return *results, value.contiguous(), gate.flatten(1) if gates else None


SPLIT_QKV_RMSNORM_MROPE_KERNEL = OpSpec(
    kernel="split_qkv_rmsnorm_mrope_kernel",
    call="torch.ops.vllm.triton_split_qkv_rmsnorm_mrope",
    assumes="a third of the pairs for each position",
    signature="qkv T:float[t, n], q_weight W:float[d], q_bias W[d]?, k_weight W[d], k_bias W[d]?, "
    "cos_sin float[3, t, size]"
    " -> query T[t, queries]!, key T[t, keys]!, value T[t, keys], gate T[t, queries]?"
    " where queries > 0, keys > 0, 6 <= size <= d, size % 2 == 0, queries % d == 0, "
    "keys % d == 0, n == (1 + has_gate) * queries + 2 * keys, has_q_bias == has_k_bias",
    reference=_mrope_reference,
    build=_mrope_build,
    operations=_OPERATIONS,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"triton.split_qkv_rmsnorm_mrope_kernel": arguments_at(outputs=6)},
)

# Where a norm is of all heads of all ranks (MiniMax-M2), one function launches two kernels: the
# split, with the mean squares of a rank, and the norm and the rotation, which follow the sum over
# the ranks. Rows do not record the size of a head: 128, if that fits.
_HEAD_SIZE = 128
_COS, _SIN, _OF_Q, _OF_K, _VARIANCES = range(2, 7)


def _head(case: Case, queries: int, keys: int, rotary: int) -> int:
    recorded = case.attribute(_HEAD)
    if recorded is None and rotary <= _HEAD_SIZE and queries % _HEAD_SIZE == keys % _HEAD_SIZE == 0:
        return _HEAD_SIZE
    return head_size(queries, keys, rotary, recorded)


def _global_call(make: TensorMaker, qkv: Any, widths: tuple[int, int], **named: Any) -> Call:
    """Build the call of a function of one rank, and zeros in place of the mean squares, which it
    does not return."""
    return Call(
        input=qkv,
        q_hidden_size=widths[0],
        kv_hidden_size=widths[1],
        eps=_EPSILON,
        tp_world=1,
        variances=make.torch.zeros_like(qkv[:, :2], dtype=make.torch.float32),
        **named,
    )


def _local_build(case: Case, make: TensorMaker) -> Call:
    return Call(like.normal((case.inputs or ())[0], make), _widths(case)[:2])


def _local_npu_build(case: Case, make: TensorMaker) -> Call:
    qkv, (queries, keys, _) = (case.inputs or ())[0], _widths(case)
    head = _head(case, queries, keys, 2)
    cos, sin = make_positions(make, (input_shape(case, 0)[0], head // 2 * 2), qkv.dtype)
    weights = {
        f"{x}_weight": make.normal((w,), qkv.dtype) for x, w in (("q", queries), ("k", keys))
    }
    rotation = {"cos": cos, "sin": sin, "head_dim": head, "rotary_dim": head // 2 * 2}
    return _global_call(make, like.normal(qkv, make), (queries, keys), **weights, **rotation)


def _local_reference(torch: Any, qkv: Any, widths: tuple[int, int]) -> Any:
    parts = qkv.split((*widths, widths[1]), -1)
    squares = [part.float().square().mean(-1) for part in parts[:2]]
    return *(part.contiguous() for part in parts), torch.stack(squares, -1)


def _local_run(api: Any, *, variances: Any, **named: Any) -> Any:
    return *api(**named), variances


SPLIT_QKV_LOCAL_QK_VAR_KERNEL = OpSpec(
    kernel="_split_qkv_and_compute_local_qk_var_kernel",
    call="torch.ops.vllm.split_qkv_tp_rmsnorm_rope",
    assumes="heads of 128 if Runtime head_dim records no other size",
    signature="qkv T:float[t, n]"
    " -> query T[t, queries]!, key T[t, keys]!, value T[t, keys], squares FLOAT[t, 2]"
    " where queries > 0, keys > 0, n == queries + 2 * keys",
    reference=_local_reference,
    build=_local_build,
    operations="2 * t * (queries + keys)",
    npu=NpuCall(run=_local_run, build=_local_npu_build, needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected heads of Runtime head_dim, or of 128, that divide queries and keys",
            lambda case: _head(case, *_widths(case)[:2], 2) > 0,
        ),
        rules.NOTHING_EMPTY,
    ),
    launched_by={"triton._split_qkv_and_compute_local_qk_var_kernel": arguments_at(outputs=1)},
)


def _global_build(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    cos, sin = make_positions(make, input_shape(case, _COS), slots[_COS].dtype)
    widths = input_shape(case, 0)[1], input_shape(case, 1)[1]
    return Call(
        *(like.normal(slot, make) for slot in slots[:2]),
        *(cos, sin),
        *(like.uniform_like(slots[i], make, 0.5, 1.5) for i in (_OF_Q, _OF_K)),
        like.uniform_like(slots[_VARIANCES], make, 0.5, 1.5),
        _head(case, *widths, input_shape(case, _COS)[1]),
    )


def _global_npu_build(case: Case, make: TensorMaker) -> Call:
    slots, (tokens, queries) = case.inputs or (), input_shape(case, 0)
    keys, rotary = input_shape(case, 1)[1], input_shape(case, _COS)[1]
    cos, sin = make_positions(make, input_shape(case, _COS), slots[_COS].dtype)
    return _global_call(
        make,
        make.normal((tokens, queries + 2 * keys), slots[0].dtype),
        (queries, keys),
        q_weight=like.uniform_like(slots[_OF_Q], make, 0.5, 1.5),
        k_weight=like.uniform_like(slots[_OF_K], make, 0.5, 1.5),
        cos=cos,
        sin=sin,
        head_dim=_head(case, queries, keys, rotary),
        rotary_dim=rotary,
    )


def _global_reference(torch: Any, *tensors: Any) -> Any:
    *queries_and_keys, cos, sin, of_q, of_k, variances, head = tensors
    half, results = cos.shape[1] // 2, []
    for at, (x, weight) in enumerate(zip(queries_and_keys, (of_q, of_k), strict=True)):
        scale = variances[:, at : at + 1].add(_EPSILON).rsqrt_()
        heads = (x.float() * scale).mul_(weight).unflatten(-1, (-1, head))
        turned = rotate_first_dims(torch, heads, cos[:, None, :half], sin[:, None, :half])
        results.append(turned.flatten(1).to(x.dtype))
    return tuple(results)


APPLY_GLOBAL_RMSNORM_KERNEL = OpSpec(
    kernel="_apply_global_rmsnorm_kernel",
    call="torch.ops.vllm.split_qkv_tp_rmsnorm_rope",
    assumes="heads of 128 if Runtime head_dim records no other size",
    signature="q T:float[t, queries], k T[t, keys], cos C:float[t, size], sin C[t, size], "
    "q_weight W:float[queries], k_weight W[keys], variances FLOAT[t, 2]"
    " -> q T[t, queries], k T[t, keys] where t * queries * keys * size > 0, size % 2 == 0",
    reference=_global_reference,
    build=_global_build,
    operations="5 * t * (queries + keys)",
    traffic=lambda case: sum(
        slot.size_bytes * (2 if i < 2 else 1) for i, slot in enumerate(case.inputs or ())
    ),
    npu=NpuCall(
        run=lambda api, *, variances, **named: api(**named)[:2],
        build=_global_npu_build,
        needs=frozenset({Need.TRITON}),
    ),
    constraints=(
        Constraint(
            "expected heads of Runtime head_dim, or of 128, that divide queries and keys",
            lambda case: _head(case, *(input_shape(case, i)[1] for i in (0, 1, _COS))) > 0,
        ),
    ),
    launched_by={
        "triton._apply_global_rmsnorm_kernel": arguments_at(
            q_weight=5, k_weight=6, variances=7, outputs=0
        )
    },
)
