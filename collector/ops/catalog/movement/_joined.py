"""Operators that join tensors into one that is there already."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.parts.moving import no_flops, place
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def joined(
    kernel: str,
    call: str,
    reference: Callable[..., Any],
    dim: Callable[[Case], int | None],
    *constraints: Constraint,
) -> OpSpec:
    """Any number of inputs. `dim` tells along which dimension they lie in the output; the
    constraints refuse the cases in which it is None."""

    def build(case: Case, make: TensorMaker) -> Call:
        parts = [make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ()]
        return Call((parts, dim(case)), {"out": place((case.outputs or ())[0], make)})

    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x",),
        variadic=True,
        reference=reference,
        build=build,
        flops=no_flops,
        moves_data=True,
        constraints=(*constraints, _ONE_DTYPE),
    )


def _has_one_dtype(case: Case) -> bool:
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return len({slot.known_dtype for slot in slots}) == 1


_ONE_DTYPE = Constraint("one dtype is wanted for all inputs and the output", _has_one_dtype)
