"""The gated delta rule token by token, as a decode runs it: states of requests in a pool.

Of each token and head, the state fades by the gate; what it returns for the key is replaced by the
value, as far as beta says; and the query reads it.
"""

from typing import Any

from collector.model.case import Case
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct_numbers
from collector.ops.signature import Sizes, parse_signature
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_QUERY, _KEY, _VALUE, _BETA, _STATE, _GATE = 0, 1, 2, 3, 4, 7
# Operations of a number of the state for each token: fading, two products, and a sum of both.
_OPERATIONS = "7 * t * heads * d * d_value"
_READ = parse_signature(
    """query DT_BF16[t, key_heads, d], key DT_BF16[t, key_heads, d],
    value T:DT_BF16[t, heads, d_value], beta DT_BF16[t, heads],
    state S:DT_BF16|FLOAT[pages, heads, d_value, d], actual_seq_lengths INT32[lengths],
    ssm_state_indices INT32[t], g FLOAT[t, heads], -gk, num_accepted_tokens INT32[requests]?
    -> out T[t, heads, d_value], state S[pages, heads, d_value, d]
    where 0 < t * key_heads * d * heads * d_value, heads % key_heads == 0, t <= pages,"""
    # the first request's start may precede the lengths
    """ requests <= lengths <= requests + 1, 0 < requests, t % requests == 0,
    has_num_accepted_tokens or lengths == t + 1 or 0 < lengths and t % lengths == 0"""
)


def _requests(sizes: Sizes) -> int:
    """Return the number of requests: that of accepted tokens if they are given, else of lengths."""
    tokens, lengths = sizes["t"], sizes["lengths"]
    return sizes.get("requests", tokens if lengths == tokens + 1 else lengths)


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call: keys of length 1, as after their norm, and a state for each token."""
    slots = case.inputs or ()
    sizes = _READ.sizes(case)
    requests, tokens, scale = _requests(sizes), sizes["t"], sizes["d"] ** -0.5
    each = tokens // requests
    accepted = sizes["has_num_accepted_tokens"]
    lengths = make.full((requests,), "INT32", each)
    return Call(
        query=like.normal(slots[_QUERY], make),
        key=like.normal(slots[_KEY], make).mul_(scale),
        value=like.normal(slots[_VALUE], make),
        state=like.normal(slots[_STATE], make),
        beta=like.uniform_like(slots[_BETA], make, 0.0, 1.0),
        scale=float(scale),
        actual_seq_lengths=lengths,
        ssm_state_indices=distinct_numbers(make, tokens, sizes["pages"], "INT32"),
        num_accepted_tokens=make.full((requests,), "INT32", 1) if accepted else None,
        g=like.uniform_like(slots[_GATE], make, -0.1, 0.0),
        start_and_lengths=make.tensor((0, *(each,) * requests), "INT32"),
    )


def _reference(
    torch: Any,
    *,
    query: Any,
    key: Any,
    value: Any,
    state: Any,
    beta: Any,
    scale: float,
    actual_seq_lengths: Any,
    ssm_state_indices: Any,
    num_accepted_tokens: Any,
    g: Any,
    start_and_lengths: Any,
) -> Any:
    requests = actual_seq_lengths.shape[0]
    places = ssm_state_indices.view(requests, -1)
    groups = value.shape[1] // key.shape[1]
    out = torch.empty_like(value)
    kept = state.index_select(0, places[:, 0]).float()
    by_request = [tensor.unflatten(0, (requests, -1)) for tensor in (query, key, value, beta, g)]
    for step in range(places.shape[1]):
        q, k, v, weight, gate = (tensor[:, step].float() for tensor in by_request)
        q, k = (tensor.repeat_interleave(groups, 1) for tensor in (q, k))
        kept, found = step_of(torch, kept, q, k, v, weight, gate)
        out.unflatten(0, (requests, -1))[:, step] = (found * scale).to(out.dtype)
        state.index_copy_(0, places[:, step].long(), kept.to(state.dtype))
    return out, state


def step_of(
    torch: Any, state: Any, query: Any, key: Any, value: Any, beta: Any, gate: Any
) -> tuple[Any, Any]:
    """Return the states (requests, heads, V, K) after a token, and what the queries read."""
    state = state * gate.exp().unsqueeze(-1).unsqueeze(-1)
    known = (state @ key.unsqueeze(-1)).squeeze(-1)
    written = (value - known) * beta.unsqueeze(-1)
    state = state + written.unsqueeze(-1) * key.unsqueeze(-2)
    return state, (state @ query.unsqueeze(-1)).squeeze(-1)


def _launch(api: Any, *, start_and_lengths: Any, **named: Any) -> Any:
    """Call the function. vLLM-Ascend's own reads the first request's start before the lengths,
    whatever the row has: without it a request would be lost."""
    if getattr(api, "_qualified_op_name", "").startswith("_C_ascend::"):
        named["actual_seq_lengths"] = start_and_lengths
    return api(**named), named["state"]


def _traffic(case: Case) -> int:
    """Return the bytes: a state read for each request and written for each token, and the rest."""
    sizes, slots = _READ.sizes(case), case.inputs or ()
    state = slots[_STATE].size_bytes // sizes["pages"]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _STATE and slot.shape)
    return rest + slots[_VALUE].size_bytes + (_requests(sizes) + sizes["t"]) * state


# CANN's own kernel, by which vLLM-Ascend 0.18 serves; 0.23 has one of its own library under the
# same name, whose state may be FLOAT, and whose lengths follow the first request's start. Each
# function gets the lengths that it reads; a row of the other one's differs from what is launched.
RECURRENT_GATED_DELTA_RULE = OpSpec(
    kernel="RecurrentGatedDeltaRule",
    is_shown_otherwise=True,
    call="torch_npu.npu_recurrent_gated_delta_rule",
    assumes="requests of as many tokens each, one accepted; states anywhere in the pool",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    operations=_OPERATIONS,
    traffic=_traffic,
    npu=NpuCall(run=_launch, served="torch.ops._C_ascend.npu_recurrent_gated_delta_rule"),
    launched_by={"aclnnRecurrentGatedDeltaRule": arguments_at(outputs=(10, 4))},
)

# The same with the gates computed in the kernel: a Triton kernel of vLLM-Ascend. Profiles show no
# tensors of Triton kernels: rows are those of a recording.
_LOG, _A, _BIAS, _Q, _K, _V, _B, _SOURCE, _INDICES, _ENDS = range(10)
_FUSED = parse_signature(
    """A_log float[heads], a float[*a], dt_bias float[heads], q T:float[1, t, key_heads, d],
    k T[1, t, key_heads, d], v T[1, t, heads, d_value], b float[*b],
    initial_state_source S:float[pages, heads, d, d_value], initial_state_indices integer[t],
    cu_seqlens integer[t + 1] -> o T[1, 1, t, heads, d_value], state S[pages, heads, d, d_value]
    where a == t * heads, b == t * heads, 0 < t * key_heads * d * heads * d_value,
    heads % key_heads == 0, t <= pages"""
)


def _fused_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = _FUSED.sizes(case), case.inputs or ()
    ends = make.tensor(range(sizes["t"] + 1), slots[_ENDS].dtype)
    places = distinct_numbers(make, sizes["t"], sizes["pages"], slots[_INDICES].dtype)
    return Call(
        A_log=like.uniform_like(slots[_LOG], make, 0.0, 1.0),
        a=like.normal(slots[_A], make),
        dt_bias=like.normal(slots[_BIAS], make),
        softplus_beta=1.0,
        softplus_threshold=20.0,
        q=like.normal(slots[_Q], make),
        k=like.normal(slots[_K], make),
        v=like.normal(slots[_V], make),
        b=like.normal(slots[_B], make),
        initial_state_source=like.normal(slots[_SOURCE], make),
        initial_state_indices=places,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=ends,
    )


def _fused_reference(torch: Any, **named: Any) -> Any:
    q, k, v, state = (named[name] for name in ("q", "k", "v", "initial_state_source"))
    heads, groups = v.shape[2], v.shape[2] // k.shape[2]
    normal = torch.nn.functional.normalize
    query, key = (normal(x[0].float(), dim=-1).repeat_interleave(groups, 1) for x in (q, k))
    steps = named["a"].view(-1, heads).float() + named["dt_bias"].float()
    gate = -named["A_log"].float().exp() * torch.nn.functional.softplus(steps)
    beta = named["b"].view(-1, heads).float().sigmoid()
    places = named["initial_state_indices"].long()
    kept = state.index_select(0, places).float().transpose(-1, -2)
    kept, found = step_of(torch, kept, query, key, v[0].float(), beta, gate)
    state.index_copy_(0, places, kept.transpose(-1, -2).to(state.dtype))
    return (found * q.shape[-1] ** -0.5).to(v.dtype)[None, None], state


def _fused_launch(api: Any, **named: Any) -> Any:
    out = api(**named)
    return out.view(1, *named["v"].shape), named["initial_state_source"]


def _fused_traffic(case: Case) -> int:
    """Return the bytes: a state read and written for each token, and the rest once."""
    sizes, slots = _FUSED.sizes(case), case.inputs or ()
    state = slots[_SOURCE].size_bytes // sizes["pages"]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _SOURCE)
    return rest + slots[_V].size_bytes + 2 * sizes["t"] * state


FUSED_SIGMOID_GATING_DELTA_RULE_UPDATE = OpSpec(
    kernel="fused_sigmoid_gating_delta_rule_update_kernel",
    call="vllm_ascend.ops.triton.fla.sigmoid_gating.fused_sigmoid_gating_delta_rule_update",
    assumes="one token a request; states anywhere in the pool",
    signature=_FUSED.text,
    reference=_fused_reference,
    build=_fused_build,
    operations=_OPERATIONS,
    traffic=_fused_traffic,
    npu=NpuCall(run=_fused_launch, needs=frozenset({Need.TRITON})),
)
