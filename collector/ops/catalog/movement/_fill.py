"""Operators that set every element of a tensor to one value: they write, and read nothing."""

from collections.abc import Callable
from typing import Any

from collector.case import Case
from collector.ops.dtypes import one_dtype
from collector.ops.parts.moving import no_flops, place
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def fill(
    kernel: str, call: str, reference: Callable[..., Any], npu: NpuCall | None = None
) -> OpSpec:
    """`reference` sets the tensor it is given, which has the shape and dtype of the input."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x",),
        reference=reference,
        build=_build,
        flops=no_flops,
        traffic=lambda case: (case.inputs or ())[0].size_bytes,
        moves_data=True,
        constraints=(
            one_dtype((0,)),
            Constraint(
                "the output wants the input's shape",
                lambda case: agrees(case, 0, input_shape(case, 0)),
            ),
        ),
        npu=npu or NpuCall(),
    )


def _build(case: Case, make: TensorMaker) -> Call:
    (like,) = case.inputs or ()
    return Call((place(like, make),))
