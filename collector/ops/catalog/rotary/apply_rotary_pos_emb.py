"""Rotary positions of queries and keys at once, half mode, in place."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.rotation import make_positions, rotate
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_SIZES = (64, 128)  # of a head, on A2 and A3
_LAYOUTS = {3: "TND", 4: "BSND"}


def _build(case: Case, make: TensorMaker) -> Call:
    query, key, cos, _ = case.inputs or ()
    return Call(
        (
            make.normal(query.shape or (), query.dtype),
            make.normal(key.shape or (), key.dtype),
            *make_positions(make, cos.shape or (), cos.dtype),
        ),
        {"layout": _LAYOUTS[len(query.shape or ())]},
    )


def _reference(torch: Any, query: Any, key: Any, cos: Any, sin: Any, *, layout: str) -> Any:
    turned = ((x * cos).addcmul_(rotate(torch, x), sin) for x in (query, key))
    return tuple(x.copy_(new) for x, new in zip((query, key), turned, strict=True))


def _fits(case: Case) -> bool:
    query, key, cos, sin = (input_shape(case, i) for i in range(4))
    if len(query) not in _LAYOUTS or query[-1] not in _SIZES or len(key) != len(query):
        return False
    tokens, size = query[:-2], query[-1]
    return (
        (key[:-2], key[-1]) == (tokens, size)
        and cos == sin == (*tokens, 1, size)
        and outputs_agree(case, query, key)
    )


OP = OpSpec(
    kernel="ApplyRotaryPosEmb",
    call="torch_npu.npu_apply_rotary_pos_emb",
    slots=("query", "key", "cos", "sin"),
    reference=_reference,
    build=_build,
    flops=lambda case: 3 * sum(elements(input_shape(case, i)) for i in range(2)),
    constraints=(
        Constraint(
            "queries and keys (B,S,N,D) or (T,N,D) with heads of 64 or 128 are wanted, and cos "
            "and sin with one head",
            _fits,
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0,)),
        one_dtype((0, 1, 2, 3), (0, 1)),
    ),
)
