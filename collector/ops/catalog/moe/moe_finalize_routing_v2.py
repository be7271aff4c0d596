"""Rows in the order of experts, weighted and summed back into tokens, beside what skipped them."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.moe._routing import make_choices
from collector.ops.dtypes import inputs_are, one_dtype, spelling
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.parts.signatures import accepts
from collector.ops.slots import Shape, elements, given, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_SKIP1, _SKIP2, _BIAS, _SCALES, _EXPERTS = 2, 3, 4, 5, 6
_OPTIONAL = frozenset(range(2, 7))
_MIXED = {("DT_BF16", "FLOAT")}
_BY_ROW = 2  # drop_pad_mode: nothing is dropped, and a token's choices lie together, as vLLM has it


def _choices(case: Case) -> int:
    """Experts of a token."""
    rows, out = input_shape(case, 0), output_shape(case, 0)
    return rows[0] // out[0] if rows and out and out[0] else 0


def _build(case: Case, make: TensorMaker) -> Call:
    rows, places, *_ = case.inputs or ()
    optional: list[Any] = []
    for position in range(_SKIP1, _EXPERTS):
        slot = given(case, position)
        optional.append(make.normal(slot.shape or (), slot.dtype) if slot else None)
    experts, bias = given(case, _EXPERTS), input_shape(case, _BIAS)
    if experts:
        tokens, each = experts.shape or (0, 0)
        optional.append(make_choices(make, tokens, each, max(each, *bias[:1], 1), experts.dtype))
    else:
        optional.append(None)
    return Call(
        (
            make.normal(rows.shape or (), rows.dtype),
            make.permutation(places.numel, places.dtype),
            *optional,
            _choices(case),
        )
    )


def _reference(
    torch: Any,
    rows: Any,
    places: Any,
    skip1: Any,
    skip2: Any,
    bias: Any,
    scales: Any,
    experts: Any,
    choices: int,
) -> Any:
    chosen = rows.index_select(0, places).unflatten(0, (-1, choices)).float()
    if bias is not None:
        chosen = chosen + bias.index_select(0, experts.flatten()).view(chosen.shape)
    if scales is not None:
        chosen = chosen * scales.unsqueeze(-1)
    out = chosen.sum(1)
    for skip in (skip1, skip2):
        if skip is not None:
            out = out + skip
    return out.to(rows.dtype)


def _npu_run(
    api: Any,
    rows: Any,
    places: Any,
    skip1: Any,
    skip2: Any,
    bias: Any,
    scales: Any,
    experts: Any,
    choices: int,
) -> Any:
    # torch_npu before 2.13 has no `k`: it counts the weights of a token, so that without weights
    # the call must fail rather than take one expert for all.
    told = {"k": choices} if scales is None or accepts(api, "k") else {}
    named = {"drop_pad_mode": _BY_ROW, **told}
    return api(rows, skip1, skip2, bias, scales, places, experts, **named)


def _fits(case: Case) -> bool:
    rows, places, choices = input_shape(case, 0), input_shape(case, 1), _choices(case)
    if len(rows) != 2 or places != rows[:1] or not choices:
        return False
    tokens: Shape = (rows[0] // choices, rows[1])
    bias, experts = given(case, _BIAS), given(case, _EXPERTS)
    wanted = {_SKIP1: tokens, _SKIP2: tokens, _SCALES: (tokens[0], choices)}
    wanted[_EXPERTS] = wanted[_SCALES]
    return (
        tokens[0] * choices == rows[0]
        and outputs_agree(case, tokens)
        and all(given(case, i) is None or input_shape(case, i) == s for i, s in wanted.items())
        and (bias is None or (experts is not None and _bias_fits(bias.shape, rows, choices)))
    )


def _bias_fits(bias: Shape | None, rows: Shape, choices: int) -> bool:
    return bias is not None and len(bias) == 2 and bias[1:] == rows[1:] and bias[0] >= choices


def _scales_fit(case: Case) -> bool:
    rows, scales = given(case, 0), given(case, _SCALES)
    return scales is None or (spelling(rows), spelling(scales)) in _MIXED | {(spelling(rows),) * 2}


OP = OpSpec(
    kernel="MoeFinalizeRoutingV2",
    call="torch_npu.npu_moe_finalize_routing",
    assumes="rows in any order",
    slots=("expanded_x", "expanded_row_idx", "x1", "x2", "bias", "scales", "expert_idx"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(input_shape(case, 0)),
    traffic=lambda case: dense_bytes(case, _OPTIONAL),
    npu=NpuCall(run=_npu_run),
    constraints=(
        Constraint(
            "rows (T*K,H), a place for each, an output (T,H), and of the rest what there is: two "
            "like the output, a bias (E,H) beside experts, scales and experts (T,K) are wanted",
            _fits,
        ),
        Constraint(
            "a second addend wants a first",
            lambda case: given(case, _SKIP2) is None or given(case, _SKIP1) is not None,
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0, _SCALES)),
        inputs_are(("INT32",), (1, _EXPERTS)),
        one_dtype((0, _SKIP1, _SKIP2, _BIAS), (0,)),
        Constraint("scales want the dtype of the rows, or FLOAT beside DT_BF16", _scales_fit),
    ),
)
