"""One number wherever a mask holds, in place: forbidden tokens, padding. A profile does not tell
the number, 0 here, nor how much of the mask holds: half of it, unless `Runtime mask_density` says
how many percent."""

import re
from typing import Any

from collector.case import Case, Slot
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops
from collector.ops.slots import agrees, broadcast, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker
from collector.vocabulary import RUNTIME_PREFIX

_MASK, _VALUE = 1, 2
_NUMBER = 0
_DENSITY = f"{RUNTIME_PREFIX}mask_density"
_PERCENT = re.compile(r"100|[1-9]?[0-9]")


def _build(case: Case, make: TensorMaker) -> Call:
    x, mask = (case.inputs or ())[:2]
    return Call((make.normal(x.shape or (), x.dtype), _mask(case, mask, make), _NUMBER))


def _mask(case: Case, mask: Slot, make: TensorMaker) -> Any:
    density = case.attribute(_DENSITY)
    if density is None:
        return make.normal(mask.shape or (), mask.dtype)
    return make.uniform(mask.shape or (), "FLOAT", 0, 100) < int(density)


def _reference(torch: Any, x: Any, mask: Any, number: int) -> Any:
    return x.masked_fill_(mask, number)


def _fits(case: Case) -> bool:
    """The mask may be smaller than the tensor, not the other way round."""
    x = input_shape(case, 0)
    return broadcast(x, input_shape(case, _MASK)) == x and agrees(case, 0, x)


def _has_its_dtype(case: Case) -> bool:
    x, *_, value = case.inputs or ()
    missing = len(case.inputs or ()) <= _VALUE or value.known_dtype is None
    return missing or value.known_dtype == x.known_dtype


OP = OpSpec(
    kernel="MaskedFill",
    call="torch.Tensor.masked_fill_",
    assumes="half of the mask holds where no density is told",
    slots=("x", "mask", "value"),
    optional=frozenset({_VALUE}),
    reference=_reference,
    build=_build,
    flops=no_flops,
    constraints=(
        Constraint("x wants the shape of the output, and a mask that broadcasts to it", _fits),
        inputs_are(("BOOL",), (_MASK,)),
        one_dtype((0,)),
        Constraint("value wants one number", lambda c: input_shape(c, _VALUE) in ((), (1,))),
        Constraint("value wants the dtype of x", _has_its_dtype),
        Constraint(
            f"{_DENSITY} wants whole percents up to 100",
            lambda case: _PERCENT.fullmatch(case.attribute(_DENSITY) or "0") is not None,
        ),
    ),
    twins=("MaskedFillAiCore",),
)
