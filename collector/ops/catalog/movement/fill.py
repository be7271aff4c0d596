"""Operators that fill a tensor with one value, or with numbers in equal steps."""

from collections.abc import Callable
from typing import Any

from collector.model.case import Case
from collector.model.lookup import Lookup, make_lookups
from collector.ops.launching import As, LaunchedBy, arguments_at, calls
from collector.ops.parts import like
from collector.ops.slots import elements, output_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker

# Operators that set every element of a tensor to one value: they write, and read nothing.


def fill(
    kernel: str,
    call: str,
    reference: Callable[..., Any] | None = None,
    npu: NpuCall | None = None,
    *,
    launched_by: LaunchedBy,
    dtype: str = "T",
    lookups: tuple[Lookup, ...] = (),
) -> OpSpec:
    """Return an operator that fills its argument, which has the input's shape and dtype."""
    return OpSpec(
        kernel=kernel,
        call=call,
        signature=f"x {dtype}[*s] -> y T[*s]",
        reference=reference,
        build=_like_build,
        traffic=lambda case: (case.inputs or ())[0].size_bytes,
        moves_data=True,
        npu=npu or NpuCall(),
        lookups=lookups,
        launched_by=launched_by,
    )


def _like_build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    return Call(like.empty(slot, make))


def _written(case: Case) -> int:
    """Return the bytes of the output; the call reads only a few numbers of the host."""
    output = output_slot(case)
    return output.size_bytes if output else 0


# One value in every element of a tensor; the slots name its dimensions and the value. A profile
# does not record the value: 1 here. For a scalar `dims` may have one number.
FILL = OpSpec(
    kernel="Fill",
    call="torch.Tensor.fill_",
    signature="dims integer[count], value T[#] -> y T[*s]!"
    " where count == s_rank or count == max(s_rank, 1)",
    build=lambda case, make: Call(like.empty(output_slot(case), make), 1),
    traffic=_written,
    moves_data=True,
    launched_by={"aclnnInplaceFillScalar": arguments_at(outputs=0)},
    shown={"dims": As.COUNT},
)


def _npu_build(case: Case, make: TensorMaker) -> Call:
    (slot,) = case.inputs or ()
    return Call(slot.shape or (), out=like.empty(slot, make))


# Ones in the shape of a tensor. `torch.ones_like` itself launches a Fill since torch_npu fills with
# a number there; ones written into existing memory launch an OnesLike.
ONES_LIKE = fill(
    "OnesLike",
    "torch.ones",
    lambda torch, x: x.fill_(1),
    NpuCall(build=_npu_build),
    launched_by=calls("aclnnInplaceOne"),
)

# Zeros in the shape of a tensor: the kernel that `zero_` launches on a buffer of gradients.
ZEROS_LIKE = fill(
    "ZerosLike",
    "torch.Tensor.zero_",
    lookups=make_lookups("aten.zeros_like.default"),
    launched_by=calls("aclnnInplaceZero"),
)

# Random numbers between 0 and 1: the first kernel of random sampling, in step traces of vLLM-Ascend
# (March 2026). The sources of CANN describe other kernels (StatelessRandomUniformV2, Muls, Sub).
RANDOM_UNIFORM = fill(
    "RandomUniform",
    "torch.Tensor.uniform_",
    dtype="T:floating",
    launched_by=calls("aclnnInplaceUniform"),
)


def _range_build(case: Case, make: TensorMaker) -> Call:
    return Call(elements(output_shape(case)), out=like.empty(output_slot(case), make))


def _counts_in_its_dtype(case: Case) -> bool:
    if _is_of_graph(case):
        return True
    output = output_slot(case)
    expected_dtype = "INT64" if spelling(output) == "INT64" else "DOUBLE"
    return all(spelling(slot) == expected_dtype for slot in case.inputs or ())


def _is_of_graph(case: Case) -> bool:
    """torchair's converter of torch.arange passes start and step as INT32 and the end as FLOAT."""
    dtypes = [spelling(slot) for slot in case.inputs or ()]
    return dtypes == ["INT32", "FLOAT", "INT32"] and spelling(output_slot(case)) == "FLOAT"


def _in_graph(arange: Any, count: int, device: Any) -> Any:
    return arange(float(count), device=device)


def _build_for_graph(case: Case, make: TensorMaker) -> Call:
    return Call(elements(output_shape(case)), make.empty((), "FLOAT").device)


# Numbers in equal steps. A profile does not record the bounds: 0, 1, 2 ... to the output's size.
RANGE = OpSpec(
    kernel="Range",
    call="torch.arange",
    signature="start, limit, delta -> y number[n]!",
    build=_range_build,
    operations="2 * n",  # start + i * delta
    constraints=(
        # aclnnArange passes no other dtypes to the kernel.
        Constraint(
            "expected DOUBLE inputs, or INT64 for an INT64 output; in graphs INT32, FLOAT and "
            "INT32 for FLOAT",
            _counts_in_its_dtype,
        ),
    ),
    npu=NpuCall(graph=GraphCall(_is_of_graph, _in_graph, _build_for_graph)),
    launched_by={"aclnnArange": arguments_at(outputs=3)},
    shown={"start": "DOUBLE", "limit": "DOUBLE", "delta": "DOUBLE"},
)
