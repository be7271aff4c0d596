"""Tokens copied once for each expert they go to, in the order of experts; on the rank of those
experts each has one, and is INT8 where it was quantised before it was sent."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.moe._routing import by_expert, experts_of, make_choices
from collector.ops.dtypes import inputs_are, one_dtype, spelling
from collector.ops.parts.moving import no_flops
from collector.ops.parts.serving import FLOATS, dtypes, nothing_empty
from collector.ops.slots import Shape, agrees, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_MOST_CHOICES = 512
_MOST_INDICES = (1 << 24) - 1


def _rows(case: Case) -> int:
    """Rows that are kept: all, or as many as the output has."""
    shape = output_shape(case, 0)
    return shape[0] if shape else elements(input_shape(case, 1))


def _choices(case: Case) -> Shape:
    """(T, K) of the experts' numbers; without a second dimension each token has one."""
    indices = input_shape(case, 1)
    return (*indices, 1) if len(indices) == 1 else indices


def _build(case: Case, make: TensorMaker) -> Call:
    tokens, indices, *_ = case.inputs or ()
    rows, choices = _choices(case)
    chosen = make_choices(make, rows, choices, experts_of(choices), indices.dtype)
    if spelling(tokens) == "INT8":
        moved = make.integers(tokens.shape or (), tokens.dtype, -127, 128)
    else:
        moved = make.normal(tokens.shape or (), tokens.dtype)
    return Call((moved, chosen.reshape(indices.shape or ()), _rows(case)))


def _reference(torch: Any, tokens: Any, indices: Any, rows: int) -> Any:
    order, places = by_expert(indices)
    return tokens.index_select(0, order[:rows] // (len(order) // len(indices))), places.int()


def _traffic(case: Case) -> int:
    """Each token is read once and each row written; as many places are written as indices read."""
    tokens, indices, *_ = case.inputs or ()
    count, rows = input_shape(case, 0)[0], _rows(case)
    row = tokens.size_bytes // max(1, count)
    return (min(count, rows) + rows) * row + indices.size_bytes + 4 * indices.numel


def _fits(case: Case) -> bool:
    tokens, indices = input_shape(case, 0), _choices(case)
    if len(tokens) != 2 or len(indices) != 2 or indices[0] != tokens[0]:
        return False
    if indices[1] > _MOST_CHOICES or elements(indices) > _MOST_INDICES:
        return False
    rows = _rows(case)
    return (
        0 < rows <= elements(indices)
        and agrees(case, 0, (rows, tokens[1]))
        and agrees(case, 1, (elements(indices),))
    )


OP = OpSpec(
    kernel="MoeTokenPermute",
    call="torch_npu.npu_moe_token_permute",
    assumes="each expert as likely for a token",
    slots=("tokens", "indices"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=_traffic,
    moves_data=True,
    constraints=(
        Constraint(
            "tokens (T,H), experts (T) or (T, at most 512), and a row for each choice or fewer are "
            "wanted",
            _fits,
        ),
        nothing_empty(),
        inputs_are((*FLOATS, "INT8"), (0,)),
        inputs_are(("INT32", "INT64"), (1,)),
        one_dtype((0,)),
        *dtypes({}, {1: "INT32"}),
    ),
)
