"""Numbers in equal steps. A profile does not tell the bounds: 0, 1, 2 ... as many as come out."""

from typing import Any

from collector.case import Case
from collector.ops.dtypes import not_bool, spelling
from collector.ops.parts.moving import place
from collector.ops.slots import elements, output_shape, output_slot
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    return Call((elements(output_shape(case)), place((case.outputs or ())[0], make)))


def _reference(torch: Any, count: int, out: Any) -> Any:
    return torch.arange(count, out=out)


def _run(arange: Any, count: int, out: Any) -> Any:
    return arange(count, out=out)


def _counts_in_its_dtype(case: Case) -> bool:
    if _is_of_graph(case):
        return True
    output = output_slot(case)
    wanted = "INT64" if spelling(output) == "INT64" else "DOUBLE"
    return all(spelling(slot) == wanted for slot in case.inputs or ())


def _is_of_graph(case: Case) -> bool:
    """torchair's converter of torch.arange gives the op its start and step as INT32 and its end
    as FLOAT."""
    dtypes = [spelling(slot) for slot in case.inputs or ()]
    return dtypes == ["INT32", "FLOAT", "INT32"] and spelling(output_slot(case)) == "FLOAT"


def _in_graph(arange: Any, count: int, device: Any) -> Any:
    return arange(float(count), device=device)


def _build_for_graph(case: Case, make: TensorMaker) -> Call:
    return Call((elements(output_shape(case)), make.empty((), "FLOAT").device))


OP = OpSpec(
    kernel="Range",
    call="torch.arange",
    slots=("start", "limit", "delta"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(output_shape(case)),  # start + i * delta
    constraints=(
        not_bool((), (0,)),
        Constraint(
            "an output of one dimension is wanted",
            lambda case: len(output_shape(case) or ()) == 1,
        ),
        # aclnnArange hands the kernel nothing else.
        Constraint(
            "inputs of DOUBLE are wanted, of INT64 for INT64; of a graph INT32, FLOAT and INT32 "
            "for FLOAT",
            _counts_in_its_dtype,
        ),
    ),
    npu=NpuCall(run=_run, graph=GraphCall(_is_of_graph, _in_graph, _build_for_graph)),
)
