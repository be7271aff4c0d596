"""Manifold-constrained hyper-connections: a block reads and writes several residual streams.

DeepSeek-V4 has four streams. Before a block, weights that a token's streams determine mix them into
one input; after it, other weights spread the output over the streams, and mix these. vLLM-Ascend
0.23 serves both by kernels of its own library (`vllm_ascend/models/deepseek_v4.py`).
"""

from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.slots import elements, input_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_NEEDS = frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})
# `hc_sinkhorn_iters`, `rms_norm_eps` and `hc_eps` of DeepSeek-V4's configuration.
_ITERATIONS = 20
_NORM_EPS, _EPS = 1e-6, 1e-6
# What the function takes: 0.23 takes 4096 and 7168, and a public profile of V4.1 has 5120.
_STREAMS, _SIZES = 4, (4096, 5120, 7168)
_SINKHORN_FLOPS = 4  # of each weight in an iteration: two sums and two divisions


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


def _pre_flops(case: Case) -> int:
    """Return the operations: the projection, the norm and the sum of the streams, and Sinkhorn's
    iterations."""
    x, projection = input_shape(case, 0), input_shape(case, 1)
    tokens, streams = elements(x[:-2]), x[-2]
    per_number = 2 * projection[0] + 4
    return elements(x) * per_number + tokens * streams**2 * _SINKHORN_FLOPS * _ITERATIONS


def _pre_fits(case: Case) -> bool:
    x, projection, scale, base = (input_shape(case, i) for i in range(4))
    if len(x) not in (3, 4) or not elements(x):
        return False
    *tokens, streams, size = x
    mixes = (2 + streams) * streams
    return (
        streams == _STREAMS
        and size in _SIZES
        and (projection, scale, base) == ((mixes, streams * size), (3,), (mixes,))
        and outputs_agree(case, (*tokens, size), (*tokens, streams), (*tokens, streams, streams))
    )


HC_PRE = OpSpec(
    kernel="HcPre",
    call="torch.ops._C_ascend.npu_hc_pre_v2",
    assumes=f"{_ITERATIONS} iterations of Sinkhorn's normalisation, DeepSeek-V4's",
    slots=("x", "hc_fn", "hc_scale", "hc_base"),
    reference=_pre_reference,
    build=_pre_build,
    flops=_pre_flops,
    npu=NpuCall(needs=_NEEDS),
    constraints=(
        Constraint(
            "expected x (T,4,D) or (B,S,4,D) with D of 4096, 5120 or 7168, a projection (24,4 * D)"
            ", three scales and a base of the projection, and as outputs x of one stream, weights "
            "(..,4) and (..,4,4)",
            _pre_fits,
        ),
        *rules.dtypes(
            {0: "DT_BF16", 1: "FLOAT", 2: "FLOAT", 3: "FLOAT"},
            {0: "DT_BF16", 1: "FLOAT", 2: "FLOAT"},
        ),
    ),
)


def _post_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with weights as the kernel before the block makes them: positive, those of
    the streams with sums of 1 about."""
    x, residual, write, mix = case.inputs or ()
    streams = input_shape(case, 3)[-1]
    return Call(
        like.normal(x, make),
        like.normal(residual, make),
        like.uniform(write, make, 0.0, 2.0),
        like.uniform(mix, make, 0.0, 2.0 / streams),
    )


def _post_reference(torch: Any, x: Any, residual: Any, write: Any, mix: Any) -> Any:
    mixed = mix.float().transpose(-1, -2) @ residual.float()
    return mixed.addcmul_(write.float().unsqueeze(-1), x.float().unsqueeze(-2)).to(residual.dtype)


def _post_fits(case: Case) -> bool:
    x, residual, write, mix = (input_shape(case, i) for i in range(4))
    if len(residual) != 4 or not elements(residual):
        return False
    *tokens, streams, size = residual
    expected = (*tokens, size), (*tokens, streams), (*tokens, streams, streams)
    return (x, write, mix) == expected and outputs_agree(case, residual)


HC_POST = OpSpec(
    kernel="HcPost",
    call="torch.ops._C_ascend.npu_hc_post",
    slots=("x", "residual", "post", "comb"),
    reference=_post_reference,
    build=_post_build,
    # of each number of each stream: a product for each stream, and that of the block's output
    flops=lambda case: elements(input_shape(case, 1)) * 2 * (input_shape(case, 1)[-2] + 1),
    npu=NpuCall(needs=_NEEDS),
    constraints=(
        Constraint(
            "expected x (B,S,D), residual streams (B,S,streams,D) and an output like them, weights "
            "(B,S,streams) and (B,S,streams,streams)",
            _post_fits,
        ),
        rules.inputs_are(rules.FLOATS, (0, 2)),
        rules.one_dtype((0, 1)),
        rules.one_dtype((2, 3), ()),
    ),
)
