"""One value in every element of a tensor, whose dimensions and value the slots name. A profile
does not tell the value: 1 here."""

from collector.case import Case
from collector.ops.dtypes import inputs_are
from collector.ops.parts.moving import no_flops, place
from collector.ops.slots import input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_DIMS, _VALUE = 0, 1


def _build(case: Case, make: TensorMaker) -> Call:
    return Call((place((case.outputs or ())[0], make), 1))


def _written(case: Case) -> int:
    """The output is written; what is read are a few numbers of the host."""
    output = output_slot(case)
    return output.size_bytes if output else 0


def _fits(case: Case) -> bool:
    """As many numbers as the output has dimensions; a scalar may be written as one."""
    out = output_shape(case)
    return out is not None and input_shape(case, _DIMS) in ((len(out),), (max(len(out), 1),))


def _has_the_value_s_dtype(case: Case) -> bool:
    output = output_slot(case)
    return output is not None and output.known_dtype == (case.inputs or ())[_VALUE].known_dtype


OP = OpSpec(
    kernel="Fill",
    call="torch.Tensor.fill_",
    slots=("dims", "value"),
    reference=lambda torch, x, value: x.fill_(value),
    build=_build,
    flops=no_flops,
    traffic=_written,
    moves_data=True,
    constraints=(
        Constraint("an output is wanted with as many dimensions as dims names", _fits),
        inputs_are(("INT32", "INT64"), (_DIMS,)),
        Constraint("value wants one number", lambda c: input_shape(c, _VALUE) in ((), (1,))),
        Constraint("the output wants the dtype of value", _has_the_value_s_dtype),
    ),
)
