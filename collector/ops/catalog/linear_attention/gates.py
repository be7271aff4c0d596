"""What is around linear attention: gates, the split of projections, norms of each head, and the
clearing of states.

Profiles show no tensors of Triton kernels: their rows are those of a recording.
"""

from dataclasses import replace
from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.tensors import per_element
from collector.ops.slots import (
    elements,
    given,
    input_shape,
    output_shape,
    output_slot,
    outputs_agree,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_LOG, _A, _B, _BIAS = range(4)


def _gating_fits(case: Case) -> bool:
    log, a, b, bias = (input_shape(case, i) for i in range(4))
    is_fitting = len(a) == 2 and a == b and log == bias == a[1:]
    return is_fitting and outputs_agree(case, (1, *a), (1, *a))


def _gating_reference(
    torch: Any, log: Any, a: Any, b: Any, bias: Any, beta: float = 1.0, threshold: float = 20.0
) -> Any:
    steps = torch.nn.functional.softplus(a.float() + bias.float(), beta, threshold)
    gates = steps.mul_(log.float().exp()).neg_()
    return gates.unsqueeze(0), b.float().sigmoid().to(b.dtype).unsqueeze(0)


# Logarithms of gates, and the share of a value that is written: of vLLM-Ascend's own library, by
# which 0.23 serves on A2 and A3, and before as a Triton kernel.
FUSED_GDN_GATING = OpSpec(
    kernel="FusedGdnGating",
    call="torch.ops._C_ascend.npu_fused_gdn_gating",
    slots=("A_log", "a", "b", "dt_bias"),
    reference=_gating_reference,
    flops=per_element(8, _A),  # exponentials and a logarithm of 6 functions, a sum and a product
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(
        Constraint(
            "expected a and b (T,H), A_log and dt_bias (H), and outputs (1,T,H)", _gating_fits
        ),
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.HALF_DTYPES, (_A, _B)),
        rules.inputs_are(rules.FLOATS, (_LOG, _BIAS)),
        rules.one_dtype((_LOG, _BIAS), ()),
        rules.outputs_are(("FLOAT",), (0,)),
        rules.one_dtype((_B,), (1,)),
    ),
)
FUSED_GDN_GATING_KERNEL = replace(
    FUSED_GDN_GATING,
    kernel="fused_gdn_gating_kernel",
    call="vllm_ascend.ops.triton.fused_gdn_gating.fused_gdn_gating_patch",
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        *FUSED_GDN_GATING.constraints[:2],
        rules.inputs_are(rules.FLOATS, (_LOG, _A, _B, _BIAS)),
        *FUSED_GDN_GATING.constraints[5:],
    ),
)

# A projection's row of queries, keys, values and gates of the output, and one of beta and steps:
# both have the numbers of one head of keys after another. The kernel puts each kind together.


def _split_heads(case: Case) -> tuple[int, int, int, int] | None:
    """Return heads of keys and values, and the numbers of each; None if the outputs do not fit."""
    qkvz, ba = input_shape(case, 0), input_shape(case, 1)
    qkv, z, b, a = (output_shape(case, i) or () for i in range(4))
    if (len(qkvz), len(ba), len(qkv), len(z)) != (2, 2, 2, 3) or not all((*qkvz, *ba, *z)):
        return None
    tokens, heads, size = z
    width = qkv[1] - heads * size
    if b != a or b != (tokens, heads) or ba != (tokens, 2 * heads) or width <= 0 or width % 2:
        return None
    if qkvz != (tokens, width + 2 * heads * size) or qkv[0] != tokens:
        return None
    keys = next((n for n in range(1, heads + 1) if heads % n == 0 and width == 2 * n * size), 0)
    return (keys, heads, size, size) if keys else None


def _split_build(case: Case, make: TensorMaker) -> Call:
    qkvz, ba = case.inputs or ()
    return Call(like.normal(qkvz, make), like.normal(ba, make), *rules.accepted(_split_heads(case)))


def _split_reference(
    torch: Any, qkvz: Any, ba: Any, keys: int, heads: int, key_size: int, size: int
) -> Any:
    own = heads // keys * size
    parts = qkvz.unflatten(1, (keys, -1)).split((key_size, key_size, own, own), -1)
    query, key, value, gate = (part.flatten(1) for part in parts)
    b, a = (part.flatten(1) for part in ba.unflatten(1, (keys, -1)).chunk(2, -1))
    return torch.cat((query, key, value), -1), gate.unflatten(1, (heads, size)), b, a


FUSED_QKVZBA_SPLIT = OpSpec(
    kernel="fused_qkvzba_split_reshape_cat_kernel",
    call="vllm_ascend.ops.triton.fla.fused_qkvzba_split_reshape.fused_qkvzba_split_reshape_cat",
    assumes="heads of keys as wide as those of values",
    slots=("mixed_qkvz", "mixed_ba"),
    reference=_split_reference,
    build=_split_build,
    moves_data=True,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected projections (T,..) and (T,2 * heads), and outputs: queries, keys and values "
            "(T,..), gates (T,heads,size), and twice (T,heads)",
            lambda case: _split_heads(case) is not None,
        ),
        rules.inputs_are(rules.FLOATS, (0, 1)),
        rules.one_dtype((0, 1), (0, 1, 2, 3)),
    ),
)

# RMS norm of rows, multiplied by a gated activation of others.
_WEIGHT, _NORM_BIAS, _GATE = 1, 2, 3
_EPS = 1e-6


def _norm_build(case: Case, make: TensorMaker) -> Call:
    x, weight, *_ = case.inputs or ()
    return Call(
        like.normal(x, make),
        like.uniform(weight, make, 0.5, 1.5),
        None,
        _EPS,
        z=like.normal(given(case, _GATE), make),
        norm_before_gate=True,
        is_rms_norm=True,
    )


def _norm_reference(
    torch: Any, x: Any, weight: Any, bias: Any, eps: float, *, z: Any, **modes: bool
) -> Any:
    wide = x.float()
    inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    y = (wide * inverse).mul_(weight.float())
    if z is not None:
        y.mul_(torch.nn.functional.silu(z.float()))
    return y.to(x.dtype), None, inverse.squeeze(-1)


def _norm_fits(case: Case) -> bool:
    x, weight, gate = input_shape(case, 0), input_shape(case, _WEIGHT), given(case, _GATE)
    is_fitting = len(x) == 2 and elements(x) > 0 and weight == x[1:]
    is_gated = gate is None or gate.shape == x
    return is_fitting and is_gated and outputs_agree(case, x, (), x[:1])


LAYER_NORM_FWD_1PASS = OpSpec(
    kernel="_layer_norm_fwd_1pass_kernel_npu",
    call="vllm_ascend.ops.triton.layernorm_gated.layer_norm_fwd_npu",
    assumes="an RMS norm before the gate",
    slots=("x", "weight", "bias", "z"),
    optional=frozenset({_NORM_BIAS, _GATE}),
    optional_outputs=frozenset({1}),
    reference=_norm_reference,
    build=_norm_build,
    flops=lambda case: (4 + (5 if given(case, _GATE) else 0)) * elements(input_shape(case, 0)),
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        rules.absent_inputs(frozenset({_NORM_BIAS}), "a bias"),
        Constraint(
            "expected rows (M,N), a weight (N), gates like the rows or none, and outputs: rows, no "
            "means, and a FLOAT (M)",
            _norm_fits,
        ),
        rules.inputs_are(rules.FLOATS, (0, _WEIGHT, _GATE)),
        rules.one_dtype((0,)),
        rules.outputs_are(("FLOAT",), (2,)),
    ),
)

# Norms of each row by its own numbers alone: of length 1, and of a mean square of 1 (the queries of
# DeepSeek-V4).
_HEADS_AND_ROWS = Constraint(
    "expected rows (M,N) and an output like them",
    lambda case: len(input_shape(case, 0)) == 2 and outputs_agree(case, input_shape(case, 0)),
)
L2NORM_LOOP = OpSpec(
    kernel="l2norm_fwd_kernel2_loop",
    call="vllm_ascend.ops.triton.fla.l2norm.l2norm_fwd",
    slots=("x",),
    reference=lambda torch, x: (
        x * x.float().square().sum(-1, keepdim=True).add_(_EPS).rsqrt_()
    ).to(x.dtype),
    flops=per_element(3),
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        _HEADS_AND_ROWS,
        rules.NOTHING_EMPTY,
        rules.inputs_are(rules.FLOATS, (0,)),
        rules.one_dtype((0,)),
    ),
)

# By vLLM's own function, where vLLM-Ascend does not replace it.
L2NORM = replace(
    L2NORM_LOOP,
    kernel="l2norm_fwd_kernel2",
    call="vllm.model_executor.layers.fla.ops.l2norm.l2norm_fwd",
)


def _rms_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; the function takes rows as heads of tokens, and views them as rows."""
    return Call(like.normal((case.inputs or ())[0], make).unsqueeze(0), _EPS)


TRITON_RMS = replace(
    L2NORM_LOOP,
    kernel="triton_rms_kernel",
    call="vllm_ascend.ops.triton.rms_norm.triton_q_rms",
    build=_rms_build,
    reference=lambda torch, x, eps: (
        (x * x.float().square().mean(-1, keepdim=True).add_(eps).rsqrt_()).to(x.dtype).squeeze(0)
    ),
    npu=NpuCall(run=lambda api, x, eps: api(x, eps).squeeze(0), needs=frozenset({Need.TRITON})),
)

# States of prompts are cleared where no tokens precede: those of a batch, which chunks then update.


def _clear_build(case: Case, make: TensorMaker) -> Call:
    states = rules.accepted(output_slot(case))
    return Call(like.normal(states, make), make.full(input_shape(case, 0), "BOOL", False))


def _clear_reference(torch: Any, states: Any, has_initial: Any) -> Any:
    kept = has_initial.view(-1, *(1,) * (states.dim() - 1))
    return states.masked_fill_(kept.logical_not(), 0)


def _clear_launch(api: Any, states: Any, has_initial: Any) -> Any:
    api(states, has_initial)
    return states


def _clear_fits(case: Case) -> bool:
    requests, states = input_shape(case, 0), output_shape(case) or ()
    return len(requests) == 1 and len(states) > 1 and all(states) and states[:1] == requests


CLEAR_SSM_STATES = OpSpec(
    kernel="_clear_ssm_states_kernel",
    call="vllm_ascend.ops.triton.fla.utils.clear_ssm_states",
    assumes="prompts without earlier tokens, so that all states are cleared",
    slots=("has_initial_state",),
    reference=_clear_reference,
    build=_clear_build,
    moves_data=True,
    npu=NpuCall(run=_clear_launch, needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint("expected a mode of each request (N), and states (N, ...)", _clear_fits),
        rules.inputs_are(("BOOL",), (0,)),
        rules.outputs_are(rules.FLOATS, (0,)),
    ),
)
