"""Sampling's filter of unlikely tokens, by their number (k) and by their probability (p).

The kernels get the logits sorted; the functions sort them themselves, by a kernel of its own. A
profile does not tell k and p: usual ones here.
"""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, dtypes, nothing_empty, outputs_agree
from collector.ops.slots import elements, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_P, _K = 2, 3
_OPTIONAL = frozenset({_P, _K})
_USUAL_P, _USUAL_K = 0.9, 50


def top_k_top_p(kernel: str, call: str, npu: NpuCall) -> OpSpec:
    """`npu.build` makes the logits and the limits, in the function's order."""
    return OpSpec(
        kernel=kernel,
        call=call,
        assumes="scores at random",
        slots=("sorted_value", "sorted_indices", "p", "k"),
        optional=_OPTIONAL,
        infinite=frozenset({0}),  # what is filtered away
        reference=_reference,
        build=_build,
        flops=lambda case: 5 * elements(input_shape(case, 0)),
        traffic=lambda case: dense_bytes(case, _OPTIONAL),
        npu=npu,
        constraints=(
            Constraint(
                "sorted logits (B,V), their numbers, and p (B) or k (B) or both are wanted", _fits
            ),
            nothing_empty(),
            inputs_are(FLOATS, (0,)),
            one_dtype((0, _P), (0,)),
            *dtypes({1: "INT32", _K: "INT32"}, {}),
        ),
    )


def build_limits(case: Case, make: TensorMaker) -> tuple[Any, Any, Any]:
    """Logits as a model gives them, and p and k, or None, for each request."""
    logits, *_ = case.inputs or ()
    p, k = given(case, _P), given(case, _K)
    most = min(_USUAL_K, input_shape(case, 0)[1])
    return (
        make.normal(logits.shape or (), logits.dtype),
        make.full(p.shape or (), p.dtype, _USUAL_P) if p else None,
        make.full(k.shape or (), k.dtype, most) if k else None,
    )


def _build(case: Case, make: TensorMaker) -> Call:
    logits, p, k = build_limits(case, make)
    ordered = logits.sort(-1)
    return Call((ordered.values, ordered.indices.int(), p, k))


def _reference(torch: Any, ordered: Any, numbers: Any, p: Any, k: Any) -> Any:
    """What is filtered becomes the lowest number: the kernel's -inf would look like a fault."""
    lowest = torch.finfo(ordered.dtype).min
    kept = ordered
    if k is not None:
        least = ordered.gather(1, (ordered.shape[1] - k.long()).unsqueeze(1))
        kept = kept.masked_fill(ordered < least, lowest)
    if p is not None:
        unlikely = kept.float().softmax(-1).cumsum(-1) <= (1 - p.float()).unsqueeze(1)
        unlikely[:, -1] = False
        kept = kept.masked_fill(unlikely, lowest)
    return torch.empty_like(kept).scatter_(1, numbers.long(), kept)


def _fits(case: Case) -> bool:
    ordered, numbers = input_shape(case, 0), input_shape(case, 1)
    if len(ordered) != 2 or numbers != ordered or not outputs_agree(case, ordered):
        return False
    limits = [slot for slot in (given(case, _P), given(case, _K)) if slot]
    return bool(limits) and all(slot.shape == ordered[:1] for slot in limits)
