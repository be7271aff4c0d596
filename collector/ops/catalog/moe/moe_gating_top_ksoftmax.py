"""A router's choice by softmax; each choice also gets the number of its row, choice by choice."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.moe._routing import chosen_by_output
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, dtypes, nothing_empty
from collector.ops.slots import elements, given, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_FINISHED = 1
_MOST_CHOICES = 1024


def _build(case: Case, make: TensorMaker) -> Call:
    """No row is finished: an engine passes rows that are to be computed."""
    x, *_ = case.inputs or ()
    finished = given(case, _FINISHED)
    none = make.full(finished.shape or (), finished.dtype, 0) if finished else None
    return Call((make.normal(x.shape or (), x.dtype), none, chosen_by_output(case)))


def _reference(torch: Any, x: Any, finished: Any, k: int) -> Any:
    best = x.float().softmax(-1).topk(k, -1)
    rows, experts = best.values[..., 0].numel(), x.shape[-1]
    chosen = best.indices
    if finished is not None:
        chosen = chosen.masked_fill(finished.unsqueeze(-1), experts)
    numbers = torch.arange(rows * k, device=x.device, dtype=torch.int32)
    numbers = numbers.view(k, rows).t().reshape(chosen.shape)
    return best.values.to(x.dtype), chosen.int(), numbers


def _fits(case: Case) -> bool:
    x, finished = input_shape(case, 0), given(case, _FINISHED)
    k = chosen_by_output(case)
    chosen = (*x[:-1], k)
    return (
        len(x) in (2, 3)
        and 1 <= k <= min(x[-1], _MOST_CHOICES)
        and (finished is None or finished.shape == x[:-1])
        and all(output_shape(case, i) in (None, chosen) for i in range(3))
    )


OP = OpSpec(
    kernel="MoeGatingTopKSoftmax",
    call="torch_npu.npu_moe_gating_top_k_softmax",
    assumes="scores at random, no row finished",
    slots=("x", "finished"),
    optional=frozenset({_FINISHED}),
    reference=_reference,
    build=_build,
    flops=lambda case: 4 * elements(input_shape(case, 0)),
    traffic=lambda case: dense_bytes(case, frozenset({_FINISHED})),
    constraints=(
        Constraint(
            "scores (T,E) or (B,S,E) and outputs with the choices of each are wanted", _fits
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0,)),
        inputs_are(("BOOL",), (_FINISHED,)),
        one_dtype((0,)),
        *dtypes({}, {1: "INT32", 2: "INT32"}),
    ),
)
