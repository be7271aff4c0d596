"""Manifold-constrained hyper-connections: a block reads and writes several residual streams.

DeepSeek-V4 has four streams. Before a block, weights that a token's streams determine mix them into
one input; after it, other weights spread the output over the streams, and mix these. vLLM-Ascend
0.23 serves both by kernels of its own library (`vllm_ascend/models/deepseek_v4.py`).
"""

from typing import Any

from collector.model.case import Case
from collector.ops.parts import like
from collector.ops.slots import input_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_NEEDS = frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})
# `hc_sinkhorn_iters`, `rms_norm_eps` and `hc_eps` of DeepSeek-V4's configuration.
_ITERATIONS = 20
_NORM_EPS, _EPS = 1e-6, 1e-6
_SINKHORN_OPERATIONS = 4  # of each weight in an iteration: two sums and two divisions


def _pre_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with a projection whose products stay near 1, as after training."""
    x, projection, scale, base = case.inputs or ()
    wide = make.normal(projection.shape or (), projection.dtype)
    return Call(
        like.normal(x, make),
        wide.mul_(input_shape(case, 1)[-1] ** -0.5),
        like.normal(scale, make),
        like.normal(base, make),
        input_shape(case, 0)[-2],
        _ITERATIONS,
        _NORM_EPS,
        _EPS,
    )


def _pre_reference(
    torch: Any,
    x: Any,
    projection: Any,
    scale: Any,
    base: Any,
    streams: int,
    iterations: int,
    norm_eps: float,
    eps: float,
) -> Any:
    """Return the block's input, the weights of its output, and those of the streams.

    A doubly stochastic matrix mixes the streams: its rows and columns are normalised in turn."""
    wide = x.float()
    flat = wide.flatten(-2)
    mixes = flat @ projection.t() * flat.square().mean(-1, keepdim=True).add_(norm_eps).rsqrt_()
    read, write, mix = mixes.split((streams, streams, streams * streams), -1)
    parts = base.split((streams, streams, streams * streams))
    read = torch.sigmoid(read * scale[0] + parts[0]).add_(eps)
    write = torch.sigmoid(write * scale[1] + parts[1]).mul_(2)
    mix = (mix * scale[2] + parts[2]).unflatten(-1, (streams, streams)).softmax(-1).add_(eps)
    mix = mix / mix.sum(-2, keepdim=True).add_(eps)
    for _ in range(iterations - 1):
        mix = mix / mix.sum(-1, keepdim=True).add_(eps)
        mix = mix / mix.sum(-2, keepdim=True).add_(eps)
    return (read.unsqueeze(-2) @ wide).squeeze(-2).to(x.dtype), write, mix


# The function of 0.23 takes four streams of 4096 or 7168; a public profile of V4.1 has 5120.
HC_PRE = OpSpec(
    kernel="HcPre",
    call="torch.ops._C_ascend.npu_hc_pre_v2",
    assumes=f"{_ITERATIONS} iterations of Sinkhorn's normalisation, DeepSeek-V4's",
    signature="x DT_BF16[*t, 4, d], hc_fn FLOAT[24, 4 * d], hc_scale FLOAT[3], hc_base FLOAT[24]"
    " -> y DT_BF16[*t, d], post FLOAT[*t, 4], comb FLOAT[*t, 4, 4]"
    " where t_rank == 1 or t_rank == 2, t > 0, d == 4096 or d == 5120 or d == 7168",
    reference=_pre_reference,
    build=_pre_build,
    # the projection, the norm and the sum of the streams, and Sinkhorn's iterations
    operations=f"4 * t * d * (2 * 24 + 4) + 4 * 4 * t * {_SINKHORN_OPERATIONS * _ITERATIONS}",
    npu=NpuCall(needs=_NEEDS),
)


def _post_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with weights as the kernel before the block makes them: positive, those of
    the streams with sums of 1 about."""
    x, residual, write, mix = case.inputs or ()
    streams = input_shape(case, 3)[-1]
    return Call(
        like.normal(x, make),
        like.normal(residual, make),
        like.uniform_like(write, make, 0.0, 2.0),
        like.uniform_like(mix, make, 0.0, 2.0 / streams),
    )


def _post_reference(torch: Any, x: Any, residual: Any, write: Any, mix: Any) -> Any:
    mixed = mix.float().transpose(-1, -2) @ residual.float()
    return mixed.addcmul_(write.float().unsqueeze(-1), x.float().unsqueeze(-2)).to(residual.dtype)


HC_POST = OpSpec(
    kernel="HcPost",
    call="torch.ops._C_ascend.npu_hc_post",
    signature="x T:float[b, s, d], residual T[b, s, streams, d], post W:float[b, s, streams], "
    "comb W[b, s, streams, streams] -> y T[b, s, streams, d] where b * s * streams * d > 0",
    reference=_post_reference,
    build=_post_build,
    # of each number of each stream: a product for each stream, and that of the block's output
    operations="2 * b * s * streams * d * (streams + 1)",
    npu=NpuCall(needs=_NEEDS),
)
