"""Causal convolutions of few tokens, each channel by itself, with the last inputs in a pool."""

from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, distinct, equal_parts
from collector.ops.slots import elements, given, input_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker, accepts

_X, _WEIGHT, _BIAS, _STATE, _STARTS, _PLACES, _INITIAL, _ACCEPTED = range(8)
_SILU = 1
_PAD = -1
_PROMPT, _UPDATE = 0, 1  # run_mode


@lru_cache(maxsize=256)
def _lengths(case: Case) -> Shape | None:
    """Return the tokens of each request, in equal parts; None if the shapes do not fit."""
    x, weight, state = (input_shape(case, i) for i in (_X, _WEIGHT, _STATE))
    if (len(x), len(weight), len(state)) != (2, 2, 3) or not all((*x, *weight, *state)):
        return None
    places, starts, initial = (input_shape(case, i) for i in (_PLACES, _STARTS, _INITIAL))
    requests = places[0] if len(places) in (1, 2) and all(places) else 0
    is_fitting = weight[1] == x[1] and state[1:] == (weight[0] - 1, x[1])
    is_fitting = is_fitting and starts in ((), (requests + 1,)) and initial in ((), (requests,))
    if not is_fitting or not 0 < requests <= min(x[0], state[0]):
        return None
    return equal_parts(x[0], requests) if outputs_agree(case, x) else None


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call: prompts begin without earlier tokens, other requests with the pool's. Of a
    table of states, the first of each request is read."""
    slots = case.inputs or ()
    lengths = rules.accepted(_lengths(case))
    starts = (0, *cumulative_ends(lengths))
    mode, ends = given(case, _INITIAL), given(case, _STARTS)
    pool = input_shape(case, _STATE)[0]
    places = [i * pool // len(lengths) for i in range(len(lengths))]
    return Call(
        like.normal(slots[_X], make),
        like.normal(slots[_WEIGHT], make).mul_(0.5),
        like.normal(given(case, _BIAS), make),
        like.normal(slots[_STATE], make),
        make.tensor(starts, ends.dtype if ends else "INT64"),
        make.tensor(_table(places, input_shape(case, _PLACES)[1:], pool), slots[_PLACES].dtype),
        make.tensor([0] * len(lengths), mode.dtype) if mode else None,
        lengths=lengths,
        listed=(list(starts), places, [0] * len(lengths) if mode else []),
    )


def _table(places: list[int], columns: Shape, pool: int) -> list[int] | list[list[int]]:
    """Return the state of each request, or with columns a row of it and those that follow."""
    if not columns:
        return places
    return [[(place + i) % pool for i in range(columns[0])] for place in places]


def _reference(
    torch: Any,
    x: Any,
    weight: Any,
    bias: Any,
    state: Any,
    starts: Any,
    places: Any,
    initial: Any,
    *,
    lengths: Shape,
    listed: Any,
) -> Any:
    out, width = torch.empty_like(x), len(weight)
    places = places.view(len(lengths), -1)[:, 0].long()
    held = state.index_select(0, places).to(x.dtype)
    if initial is not None:
        held = held * initial.view(-1, 1, 1).to(x.dtype)
    ends = cumulative_ends(lengths)
    for request, (stop, length) in enumerate(zip(ends, lengths, strict=True)):
        own = slice(stop - length, stop)
        line = torch.cat((held[request], x[own]))
        total = sum(line[i : i + length].float() * weight[i].float() for i in range(width))
        total = total if bias is None else total + bias.float()
        out[own] = torch.nn.functional.silu(total).to(out.dtype)
        held[request] = line[-(width - 1) :]
    state.index_copy_(0, places, held.to(state.dtype))
    return out


def _launch(
    api: Any,
    x: Any,
    weight: Any,
    bias: Any,
    state: Any,
    starts: Any,
    places: Any,
    initial: Any,
    *,
    lengths: Shape,
    listed: Any,
) -> Any:
    """Call the function. It takes numbers of the host up to 0.18, and since 0.23 tensors and memory
    for its output."""
    run = _UPDATE if initial is None else _PROMPT
    if accepts(api, "output"):
        numbers = (starts, places, initial, None)
        return api(x.new_empty(x.shape), x, weight, state, bias, *numbers, _SILU, _PAD, run)
    return api(x, weight, state, bias, *listed, [], _SILU, _PAD, run)


def _flops(case: Case) -> int:
    """Return the operations: a product and a sum for each weight, and 4 of the activation."""
    return (2 * input_shape(case, _WEIGHT)[0] + 4) * elements(input_shape(case, _X))


def _traffic(case: Case) -> int:
    """Return the bytes: the states of the requests read and written, and the rest once."""
    slots = case.inputs or ()
    lengths = rules.accepted(_lengths(case))
    state = slots[_STATE].size_bytes // input_shape(case, _STATE)[0]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _STATE and slot.shape)
    return rest + slots[_X].size_bytes + 2 * len(lengths) * state


# vLLM-Ascend's own kernel: 0.18 serves prompts by it, and 0.23 each step.
CAUSAL_CONV1D = OpSpec(
    kernel="CausalConv1d",
    call="torch.ops._C_ascend.npu_causal_conv1d_custom",
    assumes="requests of equal lengths, prompts without earlier tokens; states over the pool",
    slots=(
        *("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices"),
        *("initial_state_mode", "num_accepted_tokens"),
    ),
    pools={"conv_states": ""},
    optional=frozenset({_BIAS, _STARTS, _INITIAL, _ACCEPTED}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(run=_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(
        rules.absent_inputs(frozenset({_ACCEPTED}), "accepted tokens of speculation"),
        rules.inputs_are(rules.HALF_DTYPES, (_X,)),
        rules.one_dtype((_X, _WEIGHT, _BIAS, _STATE)),
        rules.inputs_are(rules.INTEGERS, (_STARTS, _PLACES)),
        rules.inputs_are((*rules.INTEGERS, "BOOL"), (_INITIAL,)),
        Constraint(
            "expected x (T,D), a weight (width,D), states (pool,width - 1,D), ends of requests "
            "from 0 on, and a state, or a row of a table of them, and an initial mode for each",
            lambda case: _lengths(case) is not None,
        ),
    ),
)

# One token of each request: a Triton kernel, by which 0.18 serves a decode. Profiles show no
# tensors of it: its rows are those of a recording.
_TOKEN_BIAS, _TOKEN_STATE, _TOKEN_PLACES = 2, 3, 4


def _token_fits(case: Case) -> bool:
    x, weight, _, state, places = (input_shape(case, i) for i in range(5))
    if (len(x), len(weight), len(state)) != (3, 2, 3) or not all((*x, *weight, *state)):
        return False
    is_fitting = x[1] == 1 and weight[1] == x[2] and state[1:] == (weight[0] - 1, x[2])
    is_fitting = is_fitting and places == x[:1] and state[0] >= x[0]
    return is_fitting and outputs_agree(case, x, state)


def _token_build(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    requests, blocks = input_shape(case, _X)[0], input_shape(case, _TOKEN_STATE)[0]
    places = distinct(make, requests, blocks, slots[_TOKEN_PLACES].dtype)
    return Call(
        like.normal(slots[_X], make),
        like.normal(slots[_WEIGHT], make).mul_(0.5),
        like.normal(given(case, _TOKEN_BIAS), make),
        like.normal(slots[_TOKEN_STATE], make),
        places,
    )


def _token_reference(torch: Any, x: Any, weight: Any, bias: Any, state: Any, places: Any) -> Any:
    line = torch.cat((state.index_select(0, places), x), 1)
    total = (line.float() * weight.float()).sum(1, keepdim=True)
    total = total if bias is None else total + bias.float()
    state.index_copy_(0, places.long(), line[:, 1:])
    return torch.nn.functional.silu(total).to(x.dtype), state


def _token_launch(api: Any, x: Any, weight: Any, bias: Any, state: Any, places: Any) -> Any:
    """Call the function, which turns its weight and states: views that are turned are not copied.

    It writes over x, whose numbers stay within the activation's."""
    out = api(
        x.squeeze(1),
        state.transpose(1, 2),
        weight.transpose(0, 1),
        bias,
        "silu",
        conv_state_indices=places,
    )
    return out.view(x.shape), state


def _token_traffic(case: Case) -> int:
    """Return the bytes: the states of the requests read and written, and the rest once."""
    slots = case.inputs or ()
    requests, blocks = input_shape(case, _X)[0], input_shape(case, _TOKEN_STATE)[0]
    state = slots[_TOKEN_STATE].size_bytes // blocks
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _TOKEN_STATE and slot.shape)
    return rest + slots[_X].size_bytes + 2 * requests * state


CAUSAL_CONV1D_UPDATE = OpSpec(
    kernel="_causal_conv1d_update_kernel_npu_tiled",
    call="vllm_ascend.ops.triton.mamba.causal_conv1d.causal_conv1d_update_npu",
    assumes="states anywhere in the pool",
    slots=("x", "weight", "bias", "conv_state", "conv_state_indices"),
    optional=frozenset({_TOKEN_BIAS}),
    pools={"conv_state": ""},
    reference=_token_reference,
    build=_token_build,
    flops=_flops,
    traffic=_token_traffic,
    npu=NpuCall(run=_token_launch, needs=frozenset({Need.TRITON})),
    constraints=(
        rules.inputs_are(rules.FLOATS, (_X,)),
        rules.one_dtype((_X, _WEIGHT, _TOKEN_BIAS, _TOKEN_STATE), (0, 1)),
        rules.inputs_are(rules.INTEGERS, (_TOKEN_PLACES,)),
        Constraint(
            "expected x (requests,1,D), a weight (width,D), states (pool,width - 1,D), a state for "
            "each request, and outputs like x and the states",
            _token_fits,
        ),
    ),
)
