"""Rows in the order of experts, summed back into tokens with the weights of their choices."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import Shape, elements, given, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_PROBS = 2
_MOST_CHOICES = 512


def _build(case: Case, make: TensorMaker) -> Call:
    """A real permutation of the rows: the inverse of an order by expert."""
    rows, places, *_ = case.inputs or ()
    probs = given(case, _PROBS)
    return Call(
        (
            make.normal(rows.shape or (), rows.dtype),
            make.permutation(places.numel, places.dtype),
            make.uniform(probs.shape or (), probs.dtype, 0.0, 1.0) if probs else None,
        )
    )


def _reference(torch: Any, rows: Any, places: Any, probs: Any) -> Any:
    chosen = rows.index_select(0, places)
    if probs is None:
        return chosen
    chosen = chosen.unflatten(0, (-1, probs.shape[1]))
    return (chosen.float() * probs.unsqueeze(-1)).sum(1).to(rows.dtype)


def _tokens(case: Case) -> Shape | None:
    """The shape of the output; None where the slots don't belong together."""
    rows, places, probs = (input_shape(case, i) for i in range(3))
    if len(rows) != 2 or places != rows[:1]:
        return None
    if given(case, _PROBS) is None:
        return rows
    if len(probs) != 2 or elements(probs) != rows[0] or probs[1] > _MOST_CHOICES:
        return None
    return (probs[0], rows[1])


def _flops(case: Case) -> int:
    """With weights a product and a sum for each element."""
    return 2 * elements(input_shape(case, 0)) if given(case, _PROBS) else 0


def _fits(case: Case) -> bool:
    tokens = _tokens(case)
    return tokens is not None and outputs_agree(case, tokens)


OP = OpSpec(
    kernel="MoeTokenUnpermute",
    call="torch_npu.npu_moe_token_unpermute",
    assumes="rows in any order",
    slots=("permuted_tokens", "sorted_indices", "probs"),
    optional=frozenset({_PROBS}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, frozenset({_PROBS})),
    constraints=(
        Constraint(
            "rows (R,H), a place for each, and weights (T, R / T) where there are any are wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0, _PROBS)),
        inputs_are(("INT32",), (1,)),
        one_dtype((0,), (0,)),
    ),
)
