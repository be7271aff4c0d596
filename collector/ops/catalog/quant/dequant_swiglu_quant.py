"""Between the two products of an expert layer: INT32 sums given back as numbers, SwiGlu, and rows
quantised to INT8 by their own largest number.

The gate is the first half, as layers have it; a profile does not tell.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.quant._groups import group_counts, scale_groups
from collector.ops.dtypes import outputs_are, spelling
from collector.ops.parts.int8 import quantise_rows
from collector.ops.parts.quant_scale import small_scale
from collector.ops.slots import Shape, agrees, elements, given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_X, _WEIGHT_SCALE, _ACTIVATION_SCALE, _BIAS, _QUANT_SCALE, _QUANT_OFFSET, _GROUPS = range(7)
_SLOTS = (
    *("x", "weight_scale", "activation_scale", "bias", "quant_scale", "quant_offset"),
    "group_index",
)
_OPTIONAL = frozenset(range(1, len(_SLOTS)))
_DYNAMIC = 1
_MULTIPLE = 64
_GROUPED_MULTIPLE, _GROUPED_LARGEST = 64, 10496


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    tensors = {}
    for position in (_WEIGHT_SCALE, _ACTIVATION_SCALE, _BIAS, _QUANT_SCALE):
        slot = given(case, position)
        if slot is None:
            continue
        shape = slot.shape or ()
        if position == _WEIGHT_SCALE:
            tensors["weight_scale"] = small_scale(shape, slot.dtype, make)
        elif position == _BIAS:
            tensors["bias"] = make.integers(shape, slot.dtype, -1000, 1000)
        else:
            tensors[_SLOTS[position]] = make.uniform(shape, slot.dtype, 0.5, 1.5)
    return tensors


def _x(case: Case, make: TensorMaker) -> Any:
    slot = (case.inputs or ())[_X]
    if spelling(slot) == "INT32":
        return make.integers(slot.shape or (), slot.dtype, -50_000, 50_000)
    return make.normal(slot.shape or (), slot.dtype)


def _build(case: Case, make: TensorMaker) -> Call:
    return Call((_x(case, make),), {**_options(case, make), "counts": group_counts(case, _GROUPS)})


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    counts, groups = group_counts(case, _GROUPS), given(case, _GROUPS)
    index = {"group_index": make.tensor(counts, groups.dtype)} if groups else {}
    settings = {"activate_left": True, "quant_mode": _DYNAMIC}
    return Call((_x(case, make),), {**_options(case, make), **index, **settings})


def _reference(
    torch: Any,
    x: Any,
    *,
    counts: tuple[int, ...],
    weight_scale: Any = None,
    activation_scale: Any = None,
    bias: Any = None,
    quant_scale: Any = None,
) -> Any:
    wide = x.to(torch.float32, copy=True)
    if bias is not None:
        wide.add_(bias)
    if weight_scale is not None:
        _scale(wide, weight_scale, counts)
    if activation_scale is not None:
        wide.mul_(activation_scale.view(-1, 1))
    gate, value = wide.chunk(2, -1)
    result = torch.nn.functional.silu(gate).mul_(value)
    if quant_scale is not None:
        _scale(result, quant_scale, counts)
    return quantise_rows(torch, result)


def _scale(wide: Any, scales: Any, counts: tuple[int, ...]) -> None:
    """All rows by the same scales, or those of a group by the group's own."""
    if counts:
        scale_groups(wide, scales, counts)
    else:
        wide.mul_(scales)


def _flops(case: Case) -> int:
    """An element of x: its scales and bias. One of y: 5 for SwiGlu, 3 to quantise, a scale."""
    first = sum(given(case, i) is not None for i in (_WEIGHT_SCALE, _ACTIVATION_SCALE, _BIAS))
    second = 8 + (given(case, _QUANT_SCALE) is not None)
    return (2 * first + second) * elements(input_shape(case, _X)) // 2


def _dtypes_fit(case: Case) -> bool:
    slots = [given(case, i) for i in range(len(_SLOTS))]
    x, weight, activation, bias, quant, _, groups = (spelling(slot) for slot in slots)
    if groups not in ("", "INT64") or quant not in ("", "FLOAT", "FLOAT16", "DT_BF16"):
        return False
    if x == "DT_BF16":
        return not (weight or activation or bias)
    return (x, weight, activation) == ("INT32", "FLOAT", "FLOAT") and bias in ("", "INT32")


def _sizes_fit(case: Case) -> bool:
    x, groups = input_shape(case, _X), input_shape(case, _GROUPS)
    if len(x) != 2 or not x[1] or x[1] % _MULTIPLE or given(case, _QUANT_OFFSET):
        return False
    rows, half = x[0], x[1] // 2
    if given(case, _GROUPS):
        legal = half % _GROUPED_MULTIPLE == 0 and half <= _GROUPED_LARGEST
        if len(groups) != 1 or not groups[0] or not legal or given(case, _BIAS):
            return False
    wanted: dict[int, tuple[Shape, ...]] = {
        _WEIGHT_SCALE: _scale_shapes(x[1], groups),
        _ACTIVATION_SCALE: ((rows,), (rows, 1)),
        _BIAS: ((x[1],),),
        _QUANT_SCALE: _scale_shapes(half, groups),
    }
    return all(not given(case, i) or input_shape(case, i) in wanted[i] for i in wanted) and (
        agrees(case, 0, (rows, half)) and agrees(case, 1, (rows,))
    )


def _scale_shapes(width: int, groups: Shape) -> tuple[Shape, ...]:
    return ((*groups, width),) if groups else ((width,), (1, width))


OP = OpSpec(
    kernel="DequantSwigluQuant",
    call="torch_npu.npu_dequant_swiglu_quant",
    slots=_SLOTS,
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    npu=NpuCall(build=_build_for_npu, served="torch.ops._C_ascend.npu_dequant_swiglu_quant"),
    constraints=(
        Constraint(
            "INT32 x wants FLOAT scales of weights and of rows, and maybe an INT32 bias; BF16 x "
            "wants none of them",
            _dtypes_fit,
        ),
        Constraint(
            "(T, 2H) is wanted, 2H a multiple of 64, scales of weights (2H) and of quantisation "
            "(H), or one for each of a group index (G INT64), where H is a multiple of 64 up to "
            "10496; no offset, and a bias only without groups",
            _sizes_fit,
        ),
        outputs_are(("INT8",), (0,)),
        outputs_are(("FLOAT",), (1,)),
    ),
)
