"""Each row quantised to INT8 by its own largest number, perhaps after smoothing scales.

Where tokens belong to experts, each expert has smoothing scales of its own.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.quant._groups import group_counts, scale_groups
from collector.ops.dtypes import inputs_are, outputs_are, spelling
from collector.ops.parts.int8 import quantise_rows
from collector.ops.parts.shares import group_ends
from collector.ops.slots import agrees, elements, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X, _SMOOTH, _GROUPS = range(3)
_OPTIONAL = frozenset({_SMOOTH, _GROUPS})


def _tensors(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    x, smooth = (case.inputs or ())[_X], given(case, _SMOOTH)
    scales = make.uniform(smooth.shape or (), smooth.dtype, 0.5, 1.5) if smooth else None
    return make.normal(x.shape or (), x.dtype), scales


def _build(case: Case, make: TensorMaker) -> Call:
    return Call(_tensors(case, make), {"counts": group_counts(case, _GROUPS)})


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    (x, smooth), groups = _tensors(case, make), given(case, _GROUPS)
    counts = group_counts(case, _GROUPS)
    ends = {"group_index": group_ends(counts, groups.dtype, make)} if groups else {}
    return Call((x,), ends if smooth is None else {"smooth_scales": smooth, **ends})


def _reference(torch: Any, x: Any, smooth: Any, *, counts: tuple[int, ...]) -> Any:
    if smooth is None:
        return quantise_rows(torch, x.to(torch.float32, copy=True))
    if not counts:
        return quantise_rows(torch, torch.mul(x.float(), smooth))
    wide = x.to(torch.float32, copy=True)
    scale_groups(wide, smooth, counts)
    return quantise_rows(torch, wide)


def _flops(case: Case) -> int:
    """An element: a maximum, a quotient and a rounding, and a product where it is smoothed."""
    return (4 if given(case, _SMOOTH) else 3) * elements(input_shape(case, _X))


def _smooth_fits(case: Case) -> bool:
    x, smooth, groups = (input_shape(case, i) for i in range(3))
    if not given(case, _SMOOTH):
        return not given(case, _GROUPS)
    if not given(case, _GROUPS):
        return smooth == x[-1:]
    return len(x) == 2 and len(groups) == 1 and groups[0] > 0 and smooth == (*groups, x[-1])


def _dtypes_fit(case: Case) -> bool:
    smooth, groups = given(case, _SMOOTH), given(case, _GROUPS)
    same = smooth is None or spelling(smooth) == spelling(given(case, _X))
    return same and (groups is None or spelling(groups) == "INT32")


def _outputs_fit(case: Case) -> bool:
    x = input_shape(case, _X)
    return len(x) > 1 and elements(x) > 0 and agrees(case, 0, x) and agrees(case, 1, x[:-1])


OP = OpSpec(
    kernel="DynamicQuant",
    call="torch_npu.npu_dynamic_quant",
    slots=("x", "smooth_scales", "group_index"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        inputs_are(("FLOAT16", "DT_BF16"), (_X,)),
        outputs_are(("INT8",), (0,)),
        outputs_are(("FLOAT",), (1,)),
        Constraint(
            "two dimensions or more are wanted, the same out, and one scale a row", _outputs_fit
        ),
        Constraint(
            "smoothing scales want the size of a row; for a group index (E), (E, size of a row)",
            _smooth_fits,
        ),
        Constraint(
            "smoothing scales want the dtype of x, a group index INT32",
            _dtypes_fit,
        ),
    ),
)
