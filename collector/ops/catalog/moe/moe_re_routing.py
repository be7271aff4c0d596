"""Tokens that came rank by rank, brought into the order of experts."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.moe._routing import unwritten
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.parts.serving import HALVES, dtypes, nothing_empty, outputs_agree
from collector.ops.slots import elements, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_SCALES = 2
_LONGEST = 16384  # of a token, exclusive


def _build(case: Case, make: TensorMaker) -> Call:
    """Every rank has about as many tokens for every expert: the kernel wants some for each."""
    tokens, counts, *_ = case.inputs or ()
    scales, rows = given(case, _SCALES), input_shape(case, 0)[0]
    ranks, experts = input_shape(case, 1)
    each, more = divmod(rows, ranks * experts)
    table = [[each + (r * experts + e < more) for e in range(experts)] for r in range(ranks)]
    return Call(
        (make.normal(tokens.shape or (), tokens.dtype), make.tensor(table, counts.dtype)),
        {
            "per_token_scales": make.uniform(scales.shape or (), scales.dtype, 0.5, 1.5)
            if scales
            else None
        },
    )


def _npu_build(case: Case, make: TensorMaker) -> Call:
    """Without scales the second output means nothing."""
    call = _build(case, make)
    means = call.kwargs["per_token_scales"] is not None
    rows = input_shape(case, 0)[:1]
    return Call(call.args, {**call.kwargs, "scales": None if means else unwritten(make, rows)})


def _npu_run(api: Any, *args: Any, scales: Any, **how: Any) -> Any:
    tokens, given_scales, index, counts = api(*args, **how)
    return tokens, given_scales if scales is None else scales, index, counts


def _reference(torch: Any, tokens: Any, counts: Any, *, per_token_scales: Any) -> Any:
    starts = (counts.flatten().cumsum(0) - counts.flatten()).view(counts.shape).t().flatten()
    lengths = counts.t().flatten()
    shifts = starts - (lengths.cumsum(0) - lengths)
    rows = torch.arange(len(tokens), device=tokens.device)
    index = rows + shifts.repeat_interleave(lengths, output_size=len(tokens))
    # Without scales this output means nothing.
    scales = tokens.new_ones(len(tokens), dtype=torch.float32)
    if per_token_scales is not None:
        scales = per_token_scales.index_select(0, index)
    return tokens.index_select(0, index), scales, index.int(), counts.sum(0).to(counts.dtype)


def _fits(case: Case) -> bool:
    tokens, counts, scales = input_shape(case, 0), input_shape(case, 1), given(case, _SCALES)
    if len(tokens) != 2 or len(counts) != 2:
        return False
    rows = tokens[:1]
    return (
        0 < tokens[1] < _LONGEST
        and elements(counts) <= tokens[0]
        and (scales is None or scales.shape == rows)
        and outputs_agree(case, tokens, rows, rows, counts[1:])
    )


OP = OpSpec(
    kernel="MoeReRouting",
    call="torch_npu.npu_moe_re_routing",
    assumes="as many tokens of each rank for each expert",
    slots=("tokens", "expert_token_num_per_rank", "per_token_scales"),
    optional=frozenset({_SCALES}),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: dense_bytes(case, frozenset({_SCALES})),
    moves_data=True,
    npu=NpuCall(run=_npu_run, build=_npu_build),
    constraints=(
        Constraint(
            "tokens (A, fewer than 16384), counts (ranks, experts), at most one for each token, "
            "and scales (A) where there are any are wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are((*HALVES, "INT8"), (0,)),
        inputs_are(("INT32", "INT64"), (1,)),
        one_dtype((0,), (0,)),
        one_dtype((1,), (3,)),
        *dtypes({_SCALES: "FLOAT"}, {1: "FLOAT", 2: "INT32"}),
    ),
)
