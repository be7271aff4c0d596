"""Running sums and histograms."""

from math import prod
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.rowwise.ordering import narrowed
from collector.ops.launching import As, arguments_at
from collector.ops.parts import like
from collector.ops.slots import elements, input_shape, output_shape, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# Cumulative sums along a dimension. A profile does not record the dimension, but aclnn writes
# dimension 0 as INT64 and others as INT32: for INT32, the last one.
# Sizes from which aclnnCumsum of CANN 8.5 launches a CumsumCube on Atlas A2 and A3.
_CUBE_ROWS, _CUBE_LENGTH = 12800, 512


def _cumsum_build(case: Case, make: TensorMaker) -> Call:
    x, axis = (case.inputs or ())[:2]
    return Call(like.normal(x, make), 0 if spelling(axis) == "INT64" else -1)


def _cumsum_run(cumsum: Any, x: Any, dim: int) -> Any:
    """Run in the dtype of x, for integers too: torch would sum them as INT64, after a Cast."""
    return cumsum(x, dim, dtype=x.dtype)


def _stays_on_vectors(case: Case) -> bool:
    """Return whether no matrix unit runs the case: it sums many long rows, by a CumsumCube."""
    x, (slot, axis) = input_shape(case, 0), (case.inputs or ())[:2]
    is_last = len(x) == 1 or spelling(axis) == "INT32"
    is_floating = spelling(slot) in ("FLOAT", "FLOAT16", "DT_BF16")
    is_big = prod(x[:-1]) >= _CUBE_ROWS and x[-1] >= _CUBE_LENGTH
    return not (is_floating and is_last and is_big)


CUMSUM = OpSpec(
    kernel="Cumsum",
    call="torch.cumsum",
    signature="x T:number[*rows, n], axis integer[#] -> y T[*rows, n]",
    build=_cumsum_build,
    operations="rows * n",
    constraints=(
        Constraint(
            f"expected fewer than {_CUBE_ROWS} rows of {_CUBE_LENGTH} floating-point numbers",
            _stays_on_vectors,
        ),
    ),
    npu=NpuCall(run=_cumsum_run),
    lookups=make_lookups("aten.cumsum.default", tc_input_count=1),
    launched_by={"aclnnCumsum": arguments_at(outputs=3)},
    shown={"axis": As.ONE_NUMBER},
)

# The number of occurrences of each number, in as many bins as the output has: the load of experts.
# A profile does not record the ends of the interval: from 0 to one more than the last bin.
_INT64 = 8  # bytes of an element
# dtype -> the greatest integer up to which it represents every integer
_REACH = {
    "FLOAT": 2**24,
    "FLOAT16": 2**11,
    "INT64": 2**31,
    "INT32": 2**31 - 1,
    "INT16": 2**15 - 1,
    "INT8": 2**7 - 1,
    "UINT8": 2**8 - 1,
}


def _histogram_build(case: Case, make: TensorMaker) -> Call:
    (x, *_), bins = case.inputs or (), elements(output_shape(case))
    is_floating = rules.accepted(x.known_dtype).is_floating
    numbers = (like.uniform_like if is_floating else like.integers)(x, make, 0, bins)
    return Call(numbers, bins, make.dtype("INT32"))


def _histogram_run(histc: Any, x: Any, bins: int, dtype: Any) -> Any:
    """Run the kernel, which counts in INT32.

    torch returns the dtype of x: where that is another dtype, aclnn adds a Cast, and this function
    casts back, except from INT64."""
    counts = histc(x, bins, 0, bins)
    return narrowed(counts, dtype) if counts.element_size() == _INT64 else counts.to(dtype)


HISTOGRAM_V2 = OpSpec(
    kernel="HistogramV2",
    call="torch.histc",
    assumes="each bin as likely",
    signature=f"x T:{'|'.join(_REACH)}[*s], min T[#], max T[#] -> y INT32[bins]!"
    " where s > 0, bins > 0",
    # On a CPU torch counts floating-point numbers only.
    reference=lambda torch, x, bins, dtype: torch.histc(x.float(), bins, 0, bins).to(dtype),
    build=_histogram_build,
    operations="2 * s",  # the bin, and an increment
    constraints=(
        Constraint(
            "expected bins that the dtype can number",
            lambda case: elements(output_shape(case)) <= _REACH[spelling((case.inputs or ())[0])],
        ),
    ),
    npu=NpuCall(run=_histogram_run),
    launched_by={"aclnnHistc": arguments_at(min=2, max=3, outputs=4)},
    shown={"y": "INT32"},
)
