"""Operators that join tensors into one that is there already."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.parts.moving import no_flops, place
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def joined(
    kernel: str,
    call: str,
    reference: Callable[..., Any],
    dim: Callable[[Case], int | None],
    *constraints: Constraint,
    of_graphs: str = "",
) -> OpSpec:
    """Any number of inputs. `dim` tells along which dimension they lie in the output; the
    constraints refuse the cases in which it is None. `of_graphs` is the kernel type that a graph
    launches for the call."""

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
        twins=(of_graphs,) if of_graphs else (),
        npu=NpuCall(graph=GraphCall(lambda case: case.kernel_type == of_graphs, _without_memory)),
    )


def _without_memory(api: Any, parts: Any, dim: int, out: Any) -> Any:
    """A graph has its own memory for what it gives."""
    return api(parts, dim)


def _has_one_dtype(case: Case) -> bool:
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return len({slot.known_dtype for slot in slots}) == 1


_ONE_DTYPE = Constraint("one dtype is wanted for all inputs and the output", _has_one_dtype)
