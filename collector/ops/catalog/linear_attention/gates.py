"""What is around linear attention: gates, the split of projections, norms of each head, and the
clearing of states.

Profiles show no tensors of Triton kernels: their rows are those of a recording.
"""

from dataclasses import replace
from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.signature import parse_signature
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker


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
    signature="A_log L:float[heads], a half[t, heads], b T:half[t, heads], dt_bias L[heads]"
    " -> g FLOAT[1, t, heads], beta T[1, t, heads]",
    reference=_gating_reference,
    operations="8 * t * heads",  # exponentials and a logarithm of 6 functions, a sum and a product
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=(rules.NOTHING_EMPTY,),
)
FUSED_GDN_GATING_KERNEL = replace(
    FUSED_GDN_GATING,
    kernel="fused_gdn_gating_kernel",
    call="vllm_ascend.ops.triton.fused_gdn_gating.fused_gdn_gating_patch",
    signature="A_log float[heads], a float[t, heads], b T:float[t, heads], dt_bias float[heads]"
    " -> g FLOAT[1, t, heads], beta T[1, t, heads]",
    npu=NpuCall(needs=frozenset({Need.TRITON})),
)

# A projection's row of queries, keys, values and gates of the output, and one of beta and steps:
# both have the numbers of one head of keys after another. The kernel puts each kind together.


_SPLIT = parse_signature(
    """mixed_qkvz T:float[t, width], mixed_ba T[t, 2 * heads]
    -> qkv T[t, qkv]!, z T[t, heads, d]!, b T[t, heads]!, a T[t, heads]!
    where 0 < t * heads * d, width == qkv + heads * d, heads * d < qkv,
    (qkv - heads * d) % (2 * d) == 0, heads % ((qkv - heads * d) // (2 * d)) == 0"""
)


def _split_build(case: Case, make: TensorMaker) -> Call:
    (qkvz, ba), sizes = case.inputs or (), _SPLIT.sizes(case)
    heads, d = sizes["heads"], sizes["d"]
    keys = (sizes["qkv"] - heads * d) // (2 * d)
    return Call(like.normal(qkvz, make), like.normal(ba, make), keys, heads, d, d)


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
    signature=_SPLIT.text,
    reference=_split_reference,
    build=_split_build,
    moves_data=True,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
)

# RMS norm of rows, multiplied by a gated activation of others.
_GATE = 3
_EPS = 1e-6


def _norm_build(case: Case, make: TensorMaker) -> Call:
    x, weight, *_ = case.inputs or ()
    return Call(
        like.normal(x, make),
        like.uniform_like(weight, make, 0.5, 1.5),
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


LAYER_NORM_FWD_1PASS = OpSpec(
    kernel="_layer_norm_fwd_1pass_kernel_npu",
    call="vllm_ascend.ops.triton.layernorm_gated.layer_norm_fwd_npu",
    assumes="an RMS norm before the gate",
    signature="x T:float[m, n], weight float[n], -bias, z float[m, n]?"
    " -> y T[m, n], -mean, rstd FLOAT[m] where 0 < m * n",
    reference=_norm_reference,
    build=_norm_build,
    operations="(4 + 5 * has_z) * m * n",
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    launched_by={
        "triton._layer_norm_fwd_1pass_kernel_npu": arguments_at(
            weight=2, bias=3, z=4, outputs=(1, 5, 6)
        )
    },
)

# Norms of each row by its own numbers alone: of length 1, and of a mean square of 1 (the queries of
# DeepSeek-V4).
L2NORM_LOOP = OpSpec(
    kernel="l2norm_fwd_kernel2_loop",
    call="vllm_ascend.ops.triton.fla.l2norm.l2norm_fwd",
    signature="x T:float[m, n] -> y T[m, n]",
    reference=lambda torch, x: (
        x * x.float().square().sum(-1, keepdim=True).add_(_EPS).rsqrt_()
    ).to(x.dtype),
    operations="3 * m * n",
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(rules.NOTHING_EMPTY,),
    launched_by={"triton.l2norm_fwd_kernel2_loop": arguments_at(outputs=1)},
)

# By vLLM's own function, where vLLM-Ascend does not replace it.
L2NORM = replace(
    L2NORM_LOOP,
    kernel="l2norm_fwd_kernel2",
    call="vllm.model_executor.layers.fla.ops.l2norm.l2norm_fwd",
    launched_by={"triton.l2norm_fwd_kernel2": arguments_at(outputs=1)},
)


def _rms_build(case: Case, make: TensorMaker) -> Call:
    """Build the call; the function takes rows as heads of tokens, and views them as rows."""
    return Call(like.normal((case.inputs or ())[0], make).unsqueeze(0), _EPS)


TRITON_RMS = replace(
    L2NORM_LOOP,
    kernel="triton_rms_kernel",
    launched_by={"triton.triton_rms_kernel": arguments_at(outputs=2)},
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


CLEAR_SSM_STATES = OpSpec(
    kernel="_clear_ssm_states_kernel",
    call="vllm_ascend.ops.triton.fla.utils.clear_ssm_states",
    assumes="prompts without earlier tokens, so that all states are cleared",
    signature="has_initial_state BOOL[requests] -> states float[requests, n, *others]!"
    " where 0 < requests * n * others",
    reference=_clear_reference,
    build=_clear_build,
    moves_data=True,
    npu=NpuCall(run=_clear_launch, needs=frozenset({Need.TRITON})),
)
