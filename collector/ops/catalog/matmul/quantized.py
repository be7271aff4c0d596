"""Products of INT8, FLOAT8, HIFLOAT8 or FLOAT4 matrices, or with an INT8 or INT4 weight."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from collector.model.case import Case, Slot
from collector.model.lookup import ONE_SIZE, make_lookups
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops import rules
from collector.ops.catalog.matmul import _grouped, _narrow
from collector.ops.catalog.matmul._product import Product, group_by_weight, product_by
from collector.ops.launching import As, Positions, arguments_at, calls
from collector.ops.parts import int8, like
from collector.ops.parts.narrow import BYTE_DTYPES, E2M1, E4M3, SCALES, is_narrow
from collector.ops.slots import given, input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# Product of INT8 matrices, dequantised by scales of columns and, optionally, of rows.
#
# Tables have different orders of the optional inputs. A row of more than four inputs has the
# kernel's own slots; a fourth and last input is identified by its dtype and size.

_X1, _X2, _SCALE, _OFFSET, _BIAS, _PER_TOKEN = range(6)
_SIGNATURE = (
    "x1 INT8[m, k], x2 INT8[<k, n>], scale[1]|[n], offset FLOAT[1]|[n]?, bias[n]|[1, n]?,"
    " pertoken_scale FLOAT[m]? -> y[m, n]! where k <= 65535, transposed or n <= 65535;"
    + _narrow.SIGNATURE
)
_product = product_by(_SIGNATURE)
_OPTIONS = {"offset": _OFFSET, "bias": _BIAS, "pertoken_scale": _PER_TOKEN}
_NOTHING = Slot(None, "", "")
_LINEAR = ("static_quant_linear", "static_quant_linear_int4", "fp8_linear", "mxfp4_linear")
_LAST_DIMENSION = 65535
_BY_COLUMN, _BY_TOKEN = False, True
# Combinations that A2 and A3 take: the dtypes of the scale and of the bias, by the output's dtype
# and by whether rows have a scale too (torch_npu's documentation of npu_quant_matmul).
_LEGAL = MappingProxyType(
    {
        ("FLOAT16", _BY_COLUMN): ({*int8.PACKED, "FLOAT"}, {"INT32"}),
        ("INT8", _BY_COLUMN): ({*int8.PACKED, "FLOAT"}, {"INT32"}),
        ("INT32", _BY_COLUMN): ({"FLOAT", "DT_BF16"}, {"INT32"}),
        ("DT_BF16", _BY_COLUMN): ({"FLOAT", "DT_BF16"}, {"INT32", "DT_BF16", "FLOAT"}),
        ("DT_BF16", _BY_TOKEN): ({"FLOAT", "DT_BF16"}, {"INT32", "DT_BF16", "FLOAT"}),
        ("FLOAT16", _BY_TOKEN): ({"FLOAT"}, {"INT32", "FLOAT16", "FLOAT"}),
    }
)


def _options(case: Case) -> Mapping[str, Slot]:
    return {name: slot for name, i in _OPTIONS.items() if (slot := given(case, i))}


def _meaning(case: Case, last: Slot) -> str:
    """Return the name of a fourth and last input."""
    if spelling(last) != "FLOAT":
        return "bias"
    if _output(case) == "INT8":
        return "offset"
    return "pertoken_scale" if last.shape == input_shape(case, _X1)[:1] else "bias"


def _placed(case: Case) -> Case:
    *inputs, last = case.inputs or (_NOTHING,)
    if len(inputs) != _OFFSET or last.shape is None or is_narrow(case):
        return case
    blanks = _OPTIONS[_meaning(case, last)] - _OFFSET
    return replace(case, inputs=(*inputs, *[_NOTHING] * blanks, last))


def _build(case: Case, make: TensorMaker) -> Call:
    if is_narrow(case):
        return _narrow.build_narrow_product(case, make)
    scale = int8.scale_like((case.inputs or ())[_SCALE], make)
    return _call(case, make, scale, _option_tensors(case, make))


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with a packed scale: the API would pack a FLOAT scale before each launch."""
    if is_narrow(case):
        return _narrow.build_for_npu(case, make)
    scale, options = (case.inputs or ())[_SCALE], _option_tensors(case, make)
    if _output(case) not in ("FLOAT16", "INT8") or "pertoken_scale" in options:
        return _call(case, make, int8.scale_like(scale, make), options)
    plain = int8.small_scale(scale.shape or (), "FLOAT", make)
    packed = make.torch.ops.npu.npu_trans_quant_param(plain, options.get("offset"))
    return _call(case, make, packed, options)


def _call(case: Case, make: TensorMaker, scale: Any, options: dict[str, Any]) -> Call:
    product, weight = _product(case), (case.inputs or ())[_X2]
    x2 = make.stored(make.integers(product.weight, "INT8", -127, 128), weight.format)
    x1 = make.integers(input_shape(case, _X1), "INT8", -127, 128)
    return Call(*product.turned(x1, x2), scale, **options, output_dtype=make.dtype(_output(case)))


def _option_tensors(case: Case, make: TensorMaker) -> dict[str, Any]:
    return {
        name: like.uniform_like(slot, make, 0.5, 1.5)
        if name == "pertoken_scale"
        else like.normal(slot, make)
        for name, slot in _options(case).items()
    }


def _reference(
    torch: Any,
    x1: Any,
    x2: Any,
    scale: Any,
    *,
    output_dtype: Any,
    offset: Any = None,
    bias: Any = None,
    pertoken_scale: Any = None,
    x1_dtype: int | None = None,
    x2_dtype: int | None = None,
) -> Any:
    if x1.dtype != torch.int8:
        scales, dtypes = (scale, pertoken_scale), (x1_dtype, x2_dtype)
        return _narrow.narrow_product(torch, x1, x2, *scales, bias, dtypes).to(output_dtype)
    total = int8.int8_product(torch, x1, x2)
    if bias is not None and bias.dtype == torch.int32:
        total, bias = total.add_(bias), None
    if output_dtype == torch.int32:
        return total
    wide = total * int8.scale_values(torch, scale)
    if pertoken_scale is not None:
        wide.mul_(pertoken_scale.unsqueeze(-1))
    for term in (bias, offset):
        if term is not None:
            wide.add_(term)
    return int8.to_int8(torch, wide) if output_dtype == torch.int8 else wide.to(output_dtype)


def _output(case: Case) -> str:
    return spelling(output_slot(case))


def _dtypes_are_legal(case: Case) -> bool:
    options, scale = _options(case), given(case, _SCALE)
    legal = _LEGAL.get((_output(case), "pertoken_scale" in options))
    if legal is None or scale is None:
        return False
    scales, biases = legal
    return (
        spelling(scale) in scales
        and ("bias" not in options or spelling(options["bias"]) in biases)
        and ("offset" not in options or _output(case) == "INT8")
    )


_CALLS = ("aclnnQuantMatmulV5", "aclnnQuantMatmulWeightNz")

QUANT_BATCH_MATMUL_V3 = OpSpec(
    kernel="QuantBatchMatmulV3",
    is_shown_otherwise=True,
    call="torch_npu.npu_quant_matmul",
    signature=_SIGNATURE,
    reference=_reference,
    build=_build,
    operations="2 * m * k * n",
    group=group_by_weight,
    packed={_SCALE: "UINT64"},
    narrow=frozenset((*BYTE_DTYPES, E2M1, SCALES)),
    placed=_placed,
    npu=NpuCall(build=_build_for_npu, nz=frozenset({_X2})),
    constraints=(
        *rules.unless(
            is_narrow,
            Constraint(
                "the dtypes of scale, bias and output do not go together: expected a FLOAT or BF16 "
                "scale for a BF16 output, FLOAT, INT64 or UINT64 for FLOAT16, the same for INT8, "
                "optionally with an offset",
                _dtypes_are_legal,
            ),
        ),
    ),
    lookups=(
        *make_lookups(
            *(f"tensor_cast.{name}.default" for name in _LINEAR),
            tc_input_count=2,
            compute_subcategory="quantized_matmul",
            expected_input_formats=("ND", "FRACTAL_NZ"),
            interpolation=ONE_SIZE,
        ),
        *make_lookups(
            *(f"tensor_cast.{name}_all_reduce.default" for name in _LINEAR),
            tc_input_count=2,
            collective="all_reduce",
        ),
    ),
    launched_by={
        **calls("aclnnQuantMatmulV4"),  # of torch_npu 2.9.0
        **dict.fromkeys(
            _CALLS, arguments_at(scale=3, offset=6, bias=8, pertoken_scale=2, outputs=-1)
        ),
    },
    shown={"x2": As.STORED, "scale": As.STORED},
)


_WEIGHT_BIAS = 6
_SIZES = f"where m > 0, 0 < k <= {_LAST_DIMENSION}, 0 < n <= {_LAST_DIMENSION}"
_WEIGHT_SIGNATURE = ";".join(
    f"x T:half[m, k], weight {weight}, antiquant_scale T[*scale], antiquant_offset T[*scale]?,"
    f" -quant_scale, -quant_offset, bias[n]|[1, n]? -> y T[m, n] {_SIZES}"
    for weight in ("INT8[<k, n>]", "INT4[k, n]")
)
_weight_product = product_by(_WEIGHT_SIGNATURE)
_GROUP_MULTIPLE = 32


def _one_expert(product: Product) -> _grouped.GroupedProduct:
    """Return the sizes of the weight as those of a single expert's, whose INT4 it has."""
    sides = (product.k, product.n, 1, product.transposes_b)
    return _grouped.GroupedProduct(product.m, *sides, counts=(product.m,))


def _weight_build(case: Case, make: TensorMaker) -> Call:
    x, weight, scale, *_ = case.inputs or ()
    if _grouped.is_nibbles(case):
        return _nibble_build(case, make)
    stored = like.integers(weight, make, -127, 128)
    options = {
        name: like.normal(slot, make)
        for name, i in (("antiquant_offset", _OFFSET), ("bias", _WEIGHT_BIAS))
        if (slot := given(case, i))
    }
    operands = _weight_product(case).turned(like.normal(x, make), stored)
    return Call(*operands, int8.scale_like(scale, make), **options)


def _nibble_build(case: Case, make: TensorMaker) -> Call:
    x, weight, scale, *_ = case.inputs or ()
    product, offset = _weight_product(case), given(case, _OFFSET)
    packed = _grouped.packed(_grouped.nibbles(_one_expert(product), make)[0], weight.format, make)
    options: dict[str, Any] = {"antiquant_offset": like.normal(offset, make)} if offset else {}
    if len(groups := input_shape(case, _SCALE)) == 2 and groups[0] > 1:
        options["antiquant_group_size"] = product.k // groups[0]
    if bias := given(case, _WEIGHT_BIAS):
        options["bias"] = like.normal(bias, make)
    return Call(like.normal(x, make), packed, int8.scale_like(scale, make), **options)


def _weight_reference(
    torch: Any,
    x: Any,
    weight: Any,
    scale: Any,
    *,
    antiquant_offset: Any = None,
    antiquant_group_size: int = 0,
    bias: Any = None,
) -> Any:
    if weight.dtype == torch.int32:
        wide = _grouped.dequantised_expert(torch, weight, scale, antiquant_offset)
    else:
        wide = int8.dequantised(weight, scale, antiquant_offset)
    product = torch.mm(x, wide)
    return product if bias is None else product.add_(bias)


def _bias_fits(case: Case) -> bool:
    x, bias = spelling(given(case, _X1)), spelling(given(case, _WEIGHT_BIAS))
    return bias in ("", "FLOAT16" if x == "FLOAT16" else "FLOAT")


def _scale_fits(case: Case) -> bool:
    product, scale = _weight_product(case), input_shape(case, _SCALE)
    columns = ((product.n,), (1, product.n))
    if not _grouped.is_nibbles(case):
        return scale in ((1,), (1, 1), *columns)
    by_group = len(scale) == 2 and _is_group(product.k, scale[0]) and scale[1] == product.n
    return (scale in columns or by_group) and product.n % _grouped.COLUMNS == 0


def _is_plain_or_nibbles(case: Case) -> bool:
    return (case.inputs or ())[_X2].format != FRACTAL_NZ or _grouped.is_nibbles(case)


def _is_group(k: int, groups: int) -> bool:
    """Return whether the kernel takes groups of this size, of fewer than all rows."""
    return groups > 1 and k % groups == 0 and (k // groups) % _GROUP_MULTIPLE == 0


# Product with an INT8 or INT4 weight, whose columns are dequantised in the kernel, of INT4 also
# by groups of rows (a multiple of 32: npu_weight_quant_batchmatmul).
WEIGHT_QUANT_BATCH_MATMUL_V2 = OpSpec(
    kernel="WeightQuantBatchMatmulV2",
    is_shown_otherwise=True,
    call="torch_npu.npu_weight_quant_batchmatmul",
    signature=_WEIGHT_SIGNATURE,
    reference=_weight_reference,
    build=_weight_build,
    operations="2 * m * k * n",
    group=group_by_weight,
    packed={_X2: "INT4"},
    npu=NpuCall(nz=frozenset({_X2})),
    constraints=(
        Constraint("expected a FLOAT16 bias with FLOAT16, FLOAT with BF16", _bias_fits),
        Constraint("expected FRACTAL_NZ of an INT4 weight only", _is_plain_or_nibbles),
        Constraint(
            "expected one number per column, or one in all, for scale and offset, for INT4 also a "
            "row for each group, and N as a multiple of 8",
            _scale_fits,
        ),
    ),
    launched_by={"aclnnWeightQuantBatchMatmulV2": arguments_at(outputs=-1)},
    shown={"weight": As.INT4},
)


_V4_ROW_SCALE, _V4_SCALE = 3, 4
_V4_GROUP = 256
_V4_SIGNATURE = (
    "x1 INT8[m, k], x2 INT4[k, n], -bias, x1_scale FLOAT[m, 1],"
    f" x2_scale {'|'.join(int8.PACKED)}[1, n]|[k // {_V4_GROUP}, n], -y_scale, -x1_offset,"
    " -x2_offset, y_offset FLOAT[n]|[1, n], -x2_table -> y half[m, n]"
    f" where k % {_V4_GROUP} == 0, n % {_grouped.COLUMNS} == 0; {_narrow.MIXED_SIGNATURE}"
)
_v4_product = product_by(_V4_SIGNATURE)


def _v4_build(case: Case, make: TensorMaker) -> Call:
    if is_narrow(case):
        return _narrow.mixed_build(case, make)
    x1, x2, row_scale = ((case.inputs or ())[i] for i in (_X1, _X2, _V4_ROW_SCALE))
    pairs = _grouped.nibbles(_one_expert(_v4_product(case)), make)
    split = _grouped.split_options(pairs, (1, *input_shape(case, _V4_SCALE)), make)
    out = output_slot(case)
    return Call(
        like.integers(x1, make, -127, 128),
        _grouped.packed(pairs[0], x2.format, make),
        split["scale"][0],
        offset=split["bias"][0],
        pertoken_scale=like.uniform_like(row_scale, make, 0.5, 1.5),
        output_dtype=make.dtype(out.dtype if out else "DT_BF16"),
        group_sizes=[0, 0, _V4_GROUP],
    )


def _v4_build_for_npu(case: Case, make: TensorMaker) -> Call:
    if is_narrow(case):
        return _narrow.mixed_build_for_npu(case, make)
    return _v4_build(case, make)


def _v4_reference(
    torch: Any,
    x1: Any,
    x2: Any,
    scale: Any,
    *,
    pertoken_scale: Any,
    output_dtype: Any,
    offset: Any = None,
    group_sizes: Any = None,
    bias: Any = None,
    x2_dtype: int | None = None,
) -> Any:
    if x1.dtype != torch.int8:
        scales, dtypes = (scale, pertoken_scale), (None, x2_dtype)
        return _narrow.narrow_product(torch, x1, x2, *scales, bias, dtypes).to(output_dtype)
    return _grouped.multiplied(torch, x1, x2, scale).mul_(pertoken_scale).to(output_dtype)


def _v4_positions(arguments: Sequence[str]) -> Positions:
    return arguments_at(
        bias=8,
        x1_scale=2,
        x2_scale=3,
        y_scale=4,
        x1_offset=5,
        x2_offset=6,
        y_offset=7,
        outputs=-1,
        absent=("x1_offset",) if arguments[0].startswith("i8[") else (),  # it has no elements
    )


# Product of INT8 rows and an INT4 weight (W4A8), which aclnnQuantMatmulV5 gives to this kernel on
# A2 and A3 (CANN's open sources, ops-nn). The kernel splits rows into halves of four bits, and the
# offset has the resulting term. Ascend 950 has it also for FLOAT8 rows and a FLOAT4 weight. INT8 by
# blocks and INT4 by INT4 are not replayed.
QUANT_BATCH_MATMUL_V4 = OpSpec(
    kernel="QuantBatchMatmulV4",
    is_shown_otherwise=True,
    call="torch_npu.npu_quant_matmul",
    signature=_V4_SIGNATURE,
    reference=_v4_reference,
    build=_v4_build,
    operations="2 * m * k * n",
    group=group_by_weight,
    packed={_X2: "INT4", _V4_SCALE: "UINT64"},
    narrow=frozenset((E4M3, E2M1, SCALES)),
    npu=NpuCall(build=_v4_build_for_npu, nz=frozenset({_X2})),
    constraints=(
        Constraint(
            "expected a FLOAT4 weight that is not in FRACTAL_NZ",
            lambda case: not is_narrow(case) or (case.inputs or ())[_X2].format != FRACTAL_NZ,
        ),
    ),
    launched_by=dict.fromkeys(_CALLS, _v4_positions),
    shown={"x2": As.INT4, "x2_scale": As.UINT64},
)
