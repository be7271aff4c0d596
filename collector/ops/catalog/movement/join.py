"""Operators that join tensors into one, or split one into several."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import OUTPUT_ELEMENTS, make_lookups
from collector.ops import rules
from collector.ops.launching import calls
from collector.ops.parts import like
from collector.ops.slots import input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker

# Operators that join tensors into an existing one.


def joining_operator(
    kernel: str,
    call: str,
    dim: Callable[[Case], int | None],
    *constraints: Constraint,
    of_graphs: str = "",
    **fields: Any,
) -> OpSpec:
    """Return an operator with any number of inputs.

    Args:
        dim: returns the dimension along which the output joins the inputs; the constraints
            refuse cases where it is None
        of_graphs: the kernel type that a graph launches for the call"""

    def build(case: Case, make: TensorMaker) -> Call:
        parts = [like.normal(slot, make) for slot in case.inputs or ()]
        return Call(parts, dim(case), out=like.empty(output_slot(case), make))

    return OpSpec(
        kernel=kernel,
        call=call,
        signature="x T+ -> y T",
        build=build,
        moves_data=True,
        constraints=constraints,
        twins=(of_graphs,) if of_graphs else (),
        npu=NpuCall(graph=GraphCall(lambda case: case.kernel_type == of_graphs, _without_memory)),
        **fields,
    )


def _without_memory(api: Any, parts: Any, dim: int, out: Any) -> Any:
    """Run the call without the output's memory: a graph allocates its own outputs."""
    return api(parts, dim)


def _joining_dims(parts: Sequence[Shape], whole: Shape | None) -> Iterator[int]:
    if whole is None or any(len(part) != len(whole) for part in parts):
        return
    for dim, size in enumerate(whole):
        sides = {part[:dim] + part[dim + 1 :] for part in parts}
        if size == sum(part[dim] for part in parts) and sides <= {whole[:dim] + whole[dim + 1 :]}:
            yield dim


def _concat_d_dim(case: Case) -> int | None:
    parts, whole = [input_shape(case, i) for i in range(len(case.inputs or ()))], output_shape(case)
    return next(_joining_dims(parts, whole), None)


# Tensors joined along the one dimension in which the output's size is their sum; in graphs
# `ConcatV2D`.
CONCAT_D = joining_operator(
    "ConcatD",
    "torch.cat",
    _concat_d_dim,
    rules.reads("expected inputs that form the output along one dimension", _concat_d_dim),
    # `cat` of one tensor launches TensorMove (profiles of CANN 8.3).
    Constraint("expected at least two inputs", lambda case: len(case.inputs or ()) > 1),
    of_graphs="ConcatV2D",
    lookups=make_lookups(
        "aten.cat.default", "tensor_cast.cat.default", interpolation=OUTPUT_ELEMENTS
    ),
)


def _pack_dim(case: Case) -> int | None:
    """Return the first dimension of the output that the inputs lack; None where they do not fit."""
    count, whole = len(case.inputs or ()), output_shape(case)
    parts = {input_shape(case, i) for i in range(count)}
    if whole is None or len(parts) != 1:
        return None
    (part,) = parts
    dims = range(len(part) + 1)
    return next((dim for dim in dims if whole == (*part[:dim], count, *part[dim:])), None)


# Tensors of one shape joined along a new dimension: the first whose size is their number.
PACK = joining_operator(
    "Pack",
    "torch.stack",
    _pack_dim,
    rules.reads(
        "expected inputs of one shape, and an output with one more dimension, of the "
        "number of inputs",
        _pack_dim,
    ),
    lookups=make_lookups("aten.stack.default"),
    launched_by=calls("aclnnStack"),
)


def _split_vd_dim(case: Case) -> int | None:
    """Return the only dimension along which the parts form the input; None for none or several."""
    fits = [*_joining_dims(_parts(case), input_shape(case, 0))]
    return fits[0] if len(fits) == 1 else None


def _parts(case: Case) -> list[Shape]:
    return [slot.shape or () for slot in case.outputs or ()]


def _build(case: Case, make: TensorMaker) -> Call:
    (whole,), dim = case.inputs or (), _split_vd_dim(case) or 0
    return Call(like.normal(whole, make), [p[dim] for p in _parts(case)], dim)


def _copied(split: Any, whole: Any, sizes: list[int], dim: int) -> Any:
    """Copy the parts: a graph returns results and no views, and adds no kernel for these copies."""
    return tuple(part.clone() for part in split(whole, sizes, dim))


# A tensor split into parts along one dimension. Only graphs launch it: torch returns views.
SPLIT_VD = OpSpec(
    kernel="SplitVD",
    call="torch.split",
    signature="x T -> part T+",
    build=_build,
    moves_data=True,
    constraints=(
        Constraint(
            "expected outputs that form the input along exactly one dimension",
            lambda case: len(case.outputs or ()) > 1 and _split_vd_dim(case) is not None,
        ),
    ),
    npu=NpuCall(run=_copied, graph=GraphCall(takes=lambda case: True, run=_copied)),
)
