"""The gated delta rule token by token, as a decode runs it: states of requests in a pool.

Of each token and head, the state fades by the gate; what it returns for the key is replaced by the
value, as far as beta says; and the query reads it.
"""

from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.tensors import distinct
from collector.ops.slots import elements, given, input_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_QUERY, _KEY, _VALUE, _BETA, _STATE, _LENGTHS, _PLACES, _GATE, _GATES, _ACCEPTED = range(10)
# Operations of a number of the state for each token: fading, two products, and a sum of both.
_FLOPS = 7


@lru_cache(maxsize=256)
def _sizes(case: Case) -> tuple[int, int] | None:
    """Return the number of requests, and of tokens of each; None if the shapes do not fit."""
    query, key, value, beta, state = (input_shape(case, i) for i in range(5))
    if len(query) != 3 or len(value) != 3 or query != key or not all((*query, *value)):
        return None
    tokens, heads, size = value
    requests = _requests(case, tokens)
    if query[0] != tokens or heads % query[1] or not requests or tokens % requests:
        return None
    expected = (tokens, heads), (*state[:1], heads, size, query[2])
    places, gate = input_shape(case, _PLACES), input_shape(case, _GATE)
    is_fitting = (beta, state) == expected and places == (tokens,) and gate == (tokens, heads)
    if not is_fitting or state[0] < tokens or not outputs_agree(case, value, state):
        return None
    return requests, tokens // requests


def _requests(case: Case, tokens: int) -> int:
    """Return the number of requests: that of accepted tokens if they are given, else that of
    lengths, which may follow the first request's start; 0 if they do not fit."""
    lengths, accepted = input_shape(case, _LENGTHS), given(case, _ACCEPTED)
    if len(lengths) != 1:
        return 0
    if accepted is None:
        return tokens if lengths == (tokens + 1,) else lengths[0]
    requests = (accepted.shape or (0,))[0]
    is_fitting = accepted.shape == (requests,) and lengths[0] - requests in (0, 1)
    return requests if is_fitting else 0


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call: keys of length 1, as after their norm, and a state for each token."""
    slots = case.inputs or ()
    requests, each = rules.accepted(_sizes(case))
    scale = input_shape(case, _QUERY)[2] ** -0.5
    tokens, blocks = input_shape(case, _VALUE)[0], input_shape(case, _STATE)[0]
    accepted, lengths = given(case, _ACCEPTED), make.full((requests,), "INT32", each)
    return Call(
        query=like.normal(slots[_QUERY], make),
        key=like.normal(slots[_KEY], make).mul_(scale),
        value=like.normal(slots[_VALUE], make),
        state=like.normal(slots[_STATE], make),
        beta=like.uniform(slots[_BETA], make, 0.0, 1.0),
        scale=float(scale),
        actual_seq_lengths=lengths,
        ssm_state_indices=distinct(make, tokens, blocks, "INT32"),
        num_accepted_tokens=make.full((requests,), "INT32", 1) if accepted else None,
        g=like.uniform(slots[_GATE], make, -0.1, 0.0),
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


def _flops(case: Case) -> int:
    return _FLOPS * input_shape(case, _VALUE)[0] * elements(input_shape(case, _STATE)[1:])


def _traffic(case: Case) -> int:
    """Return the bytes: a state read for each request and written for each token, and the rest."""
    slots = case.inputs or ()
    requests, each = rules.accepted(_sizes(case))
    state = slots[_STATE].size_bytes // input_shape(case, _STATE)[0]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _STATE and slot.shape)
    return rest + slots[_VALUE].size_bytes + requests * (1 + each) * state


# CANN's own kernel, by which vLLM-Ascend 0.18 serves; 0.23 has one of its own library under the
# same name, whose state may be FLOAT, and whose lengths follow the first request's start. Each
# function gets the lengths that it reads; a row of the other one's differs from what is launched.
RECURRENT_GATED_DELTA_RULE = OpSpec(
    kernel="RecurrentGatedDeltaRule",
    is_shown_otherwise=True,
    call="torch_npu.npu_recurrent_gated_delta_rule",
    assumes="requests of as many tokens each, one accepted; states anywhere in the pool",
    slots=(
        *("query", "key", "value", "beta", "state", "actual_seq_lengths", "ssm_state_indices"),
        *("g", "gk", "num_accepted_tokens"),
    ),
    optional=frozenset({_GATES, _ACCEPTED}),
    pools={"state": ""},
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, served="torch.ops._C_ascend.npu_recurrent_gated_delta_rule"),
    constraints=(
        rules.absent_inputs(frozenset({_GATES}), "gates for each number of a key"),
        rules.inputs_are(("DT_BF16",), (_QUERY, _KEY, _VALUE, _BETA)),
        rules.inputs_are(("DT_BF16", "FLOAT"), (_STATE,)),
        rules.inputs_are(("INT32",), (_LENGTHS, _PLACES, _ACCEPTED)),
        rules.inputs_are(("FLOAT",), (_GATE,)),
        rules.one_dtype((_VALUE,)),
        rules.one_dtype((_STATE,), (1,)),
        Constraint(
            "expected queries and keys (T,Hk,K), values (T,H,V), beta and gates (T,H), a state "
            "(at least T,H,V,K), a length for each request that divides T, which the first one's "
            "start may precede, a state for each token, and outputs like values and state",
            lambda case: _sizes(case) is not None,
        ),
    ),
)

# The same with the gates computed in the kernel: a Triton kernel of vLLM-Ascend. Profiles show no
# tensors of Triton kernels: rows are those of a recording.
_LOG, _A, _BIAS, _Q, _K, _V, _B, _SOURCE, _INDICES, _ENDS = range(10)


@lru_cache(maxsize=256)
def _fused_sizes(case: Case) -> tuple[int, Shape] | None:
    """Return the number of requests and the shape of values (1,T,H,V); None if nothing fits."""
    log, a, bias, query, key, value, b, state, places, ends = (
        input_shape(case, i) for i in range(10)
    )
    if len(query) != 4 or len(value) != 4 or query != key or query[0] != 1:
        return None
    if not all((*query, *value)) or value[1] != query[1] or value[2] % query[2] or len(state) != 4:
        return None
    tokens, heads = value[1:3]
    per_token = elements(a) == elements(b) == tokens * heads and log == bias == (heads,)
    states = state[1:] == (heads, query[3], value[3]) and state[0] >= tokens
    is_decode = places == (tokens,) and ends == (tokens + 1,)
    is_fitting = per_token and states and is_decode and outputs_agree(case, (1, *value), state)
    return (tokens, value) if is_fitting else None


def _fused_build(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    tokens, _ = rules.accepted(_fused_sizes(case))
    ends = make.tensor(range(tokens + 1), slots[_ENDS].dtype)
    places = distinct(make, tokens, input_shape(case, _SOURCE)[0], slots[_INDICES].dtype)
    return Call(
        A_log=like.uniform(slots[_LOG], make, 0.0, 1.0),
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
    slots = case.inputs or ()
    tokens, _ = rules.accepted(_fused_sizes(case))
    state = slots[_SOURCE].size_bytes // input_shape(case, _SOURCE)[0]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _SOURCE)
    return rest + slots[_V].size_bytes + 2 * tokens * state


FUSED_SIGMOID_GATING_DELTA_RULE_UPDATE = OpSpec(
    kernel="fused_sigmoid_gating_delta_rule_update_kernel",
    call="vllm_ascend.ops.triton.fla.sigmoid_gating.fused_sigmoid_gating_delta_rule_update",
    assumes="one token a request; states anywhere in the pool",
    slots=(
        *("A_log", "a", "dt_bias", "q", "k", "v", "b", "initial_state_source"),
        *("initial_state_indices", "cu_seqlens"),
    ),
    pools={"initial_state_source": ""},
    reference=_fused_reference,
    build=_fused_build,
    flops=lambda case: (
        _FLOPS * rules.accepted(_fused_sizes(case))[0] * elements(input_shape(case, _SOURCE)[1:])
    ),
    traffic=_fused_traffic,
    npu=NpuCall(run=_fused_launch, needs=frozenset({Need.TRITON})),
    constraints=(
        rules.inputs_are(rules.FLOATS, (_LOG, _A, _BIAS, _Q, _B, _SOURCE)),
        rules.one_dtype((_Q, _K, _V)),
        rules.one_dtype((_SOURCE,), (1,)),
        rules.inputs_are(rules.INTEGERS, (_INDICES, _ENDS)),
        Constraint(
            "expected queries and keys (1,T,Hk,K), values (1,T,H,V), numbers (T,H) and (H) of "
            "gates, states (at least T,H,K,V), one token a request, and outputs (1,1,T,H,V) and "
            "like states",
            lambda case: _fused_sizes(case) is not None,
        ),
    ),
)
