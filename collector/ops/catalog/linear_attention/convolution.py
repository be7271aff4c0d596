"""Causal convolutions of few tokens, each channel by itself, with the last inputs in a pool."""

from typing import Any

from collector.model.case import Case, Shape
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, distinct_numbers, equal_parts
from collector.ops.signature import Sizes, parse_signature
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker, accepts

_X, _WEIGHT, _BIAS, _STATE, _STARTS, _PLACES, _INITIAL = range(7)
_READ = parse_signature(
    """x T:half[t, channels], weight T[width, channels], bias T[channels]?,
    conv_states T[pages, width - 1, channels], query_start_loc integer[requests + 1]?,
    cache_indices integer[requests]|[requests, columns],
    initial_state_mode INT32|INT64|BOOL[requests]?, -num_accepted_tokens -> y T[t, channels]
    where 0 < requests <= min(t, pages), 0 < channels, 1 < width, 0 < columns"""
)
_SILU = 1
_PAD = -1
_PROMPT, _UPDATE = 0, 1  # run_mode


def _build(case: Case, make: TensorMaker) -> Call:
    """Build the call: prompts begin without earlier tokens, other requests with the pool's. Of a
    table of states, the first of each request is read."""
    sizes, slots = _READ.sizes(case), case.inputs or ()
    lengths = equal_parts(sizes["t"], sizes["requests"])
    starts = (0, *cumulative_ends(lengths))
    mode, ends = given(case, _INITIAL), given(case, _STARTS)
    pool = sizes["pages"]
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


def _traffic(case: Case, sizes: Sizes) -> int:
    """Return the bytes: the states of the requests read and written, and the rest once."""
    slots = case.inputs or ()
    state = slots[_STATE].size_bytes // sizes["pages"]
    rest = sum(slot.size_bytes for i, slot in enumerate(slots) if i != _STATE and slot.shape)
    return rest + slots[_X].size_bytes + 2 * sizes["requests"] * state


# vLLM-Ascend's own kernel: 0.18 serves prompts by it, and 0.23 each step.
CAUSAL_CONV1D = OpSpec(
    kernel="CausalConv1d",
    call="torch.ops._C_ascend.npu_causal_conv1d_custom",
    assumes="requests of equal lengths, prompts without earlier tokens; states over the pool",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    # a product and a sum for each weight, and 4 of the activation
    operations="(2 * width + 4) * t * channels",
    traffic=lambda case: _traffic(case, _READ.sizes(case)),
    npu=NpuCall(run=_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    launched_by={"aclnnCausalConv1d": arguments_at(slots=8, outputs=-1)},
)

# One token of each request: a Triton kernel, by which 0.18 serves a decode. Profiles show no
# tensors of it: its rows are those of a recording.
_TOKENS = parse_signature(
    """x T:float[requests, 1, channels], weight T[width, channels], bias T[channels]?,
    conv_state T[pages, width - 1, channels], conv_state_indices integer[requests]
    -> y T[requests, 1, channels], conv_state T[pages, width - 1, channels]
    where 0 < requests <= pages, 0 < channels, 1 < width"""
)


def _token_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = _TOKENS.sizes(case), case.inputs or ()
    places = distinct_numbers(make, sizes["requests"], sizes["pages"], slots[4].dtype)
    return Call(
        like.normal(slots[_X], make),
        like.normal(slots[_WEIGHT], make).mul_(0.5),
        like.normal(given(case, _BIAS), make),
        like.normal(slots[_STATE], make),
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


CAUSAL_CONV1D_UPDATE = OpSpec(
    kernel="_causal_conv1d_update_kernel_npu_tiled",
    call="vllm_ascend.ops.triton.mamba.causal_conv1d.causal_conv1d_update_npu",
    assumes="states anywhere in the pool",
    signature=_TOKENS.text,
    reference=_token_reference,
    build=_token_build,
    operations="(2 * width + 4) * requests * channels",
    traffic=lambda case: _traffic(case, _TOKENS.sizes(case)),
    npu=NpuCall(run=_token_launch, needs=frozenset({Need.TRITON})),
    launched_by={"triton._causal_conv1d_update_kernel_npu_tiled": arguments_at(outputs=(9, 3))},
)
