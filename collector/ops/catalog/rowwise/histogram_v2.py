"""How often each number occurs, in as many bins as the output has: the load of experts. A profile
does not tell the ends of the interval: from 0 to one more than the last bin."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rowwise._indices import narrowed
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are, spelling
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_INT64 = 8  # bytes of an element
# dtype -> the greatest integer up to which it holds every one
_REACH = {
    "FLOAT": 2**24,
    "FLOAT16": 2**11,
    "INT64": 2**31,
    "INT32": 2**31 - 1,
    "INT16": 2**15 - 1,
    "INT8": 2**7 - 1,
    "UINT8": 2**8 - 1,
}


def _build(case: Case, make: TensorMaker) -> Call:
    (x, *_), bins = case.inputs or (), elements(output_shape(case))
    if x.known_dtype and x.known_dtype.is_floating:
        numbers = make.uniform(x.shape or (), x.dtype, 0, bins)
    else:
        numbers = make.integers(x.shape or (), x.dtype, 0, bins)
    return Call((numbers, bins, make.dtype("INT32")))


def _reference(torch: Any, x: Any, bins: int, dtype: Any) -> Any:
    # A cpu counts floating-point numbers only.
    return torch.histc(x.float(), bins, 0, bins).to(dtype)


def _run(histc: Any, x: Any, bins: int, dtype: Any) -> Any:
    """The kernel counts in INT32. torch wants the dtype of x: where that is another, aclnn adds a
    Cast, and here comes one back, but from INT64."""
    counts = histc(x, bins, 0, bins)
    return narrowed(counts, dtype) if counts.element_size() == _INT64 else counts.to(dtype)


def _fits(case: Case) -> bool:
    out, x = output_shape(case) or (), (case.inputs or ())[0]
    return len(out) == 1 and 0 < out[0] <= _REACH.get(spelling(x), 0)


OP = OpSpec(
    kernel="HistogramV2",
    call="torch.histc",
    assumes="each bin as likely",
    slots=("x", "min", "max"),
    reference=_reference,
    build=_build,
    flops=lambda case: 2 * elements(input_shape(case, 0)),  # the bin, and one more in it
    constraints=(
        inputs_are(tuple(_REACH), (0,)),
        one_dtype((0, 1, 2), ()),
        outputs_are(("INT32",), (0,)),
        Constraint(
            "an output of one dimension is wanted, with bins that the dtype can number", _fits
        ),
        Constraint(
            "min and max want one number each",
            lambda case: all(input_shape(case, i) in ((), (1,)) for i in (1, 2)),
        ),
        Constraint("an empty input has no histogram", lambda c: elements(input_shape(c, 0)) > 0),
    ),
    npu=NpuCall(run=_run),
)
