"""Products of FLOAT8, HIFLOAT8 and FLOAT4 matrices, which Ascend 950 has: QuantBatchMatmulV3 with
other scales.

The combinations that aclnnQuantMatmulV5 documents for that device (ops-nn) and vLLM-Ascend serves:
one scale for each row and each column (or one for all columns), blocks of 128 by 128 of the weight
with 128 neighbours or 128 by 128 of the tokens, and MX: one for each 32 neighbours. Scales lie as
their matrix does: those of a transposed weight are transposed. FLOAT4 have MX scales only, and
their weight is transposed; HIFLOAT8 have the other scales only.
"""

from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.catalog.matmul._grouped import GroupedProduct
from collector.ops.catalog.matmul._product import product_by
from collector.ops.parts import like, narrow
from collector.ops.slots import given, input_shape, output_slot, spelling
from collector.ops.spec import Call, TensorMaker

_X1, _X2, _SCALE, _OFFSET, _BIAS, _PER_TOKEN = range(6)
_BLOCK = 128
_DTYPES = {"x1_dtype": _X1, "x2_dtype": _X2}
_Dtypes = tuple[int | None, int | None]  # torch_npu's numbers of both, where they are bytes


_FLOAT8 = "|".join(narrow.DTYPES)
_BLOCKS_OF_K, _GROUPS = f"ceil_div(k, {_BLOCK})", f"ceil_div(k, {narrow.PAIR})"
_RESULT = "y float[m, n]! where m * k * n > 0"
_MX_SCALE = f"pertoken_scale {narrow.SCALES}[m, {_GROUPS}, 2] -> {_RESULT}"
_ADDED = "bias FLOAT[n]|[1, n]?"
_BLOCKS = f"<{_BLOCKS_OF_K}, ceil_div(n, {_BLOCK})>"
# Rows of FLOAT4 have whole bytes and pairs of groups.
_EVEN = f"k % 2 == 0, ceil_div(k, {narrow.GROUP}) % 2 == 0"
# By columns, by blocks, and MX.
SIGNATURE = (
    "".join(
        f"x1 {dtype}[m, k], x2 {dtype}[<k, n>], scale FLOAT[1]|[n], -offset, {_ADDED},"
        f" pertoken_scale FLOAT[m] -> {_RESULT};"
        f"x1 {dtype}[m, k], x2 {dtype}[<k, n>], scale FLOAT[{_BLOCKS}], -offset, -bias,"
        f" pertoken_scale FLOAT[m, {_BLOCKS_OF_K}]|[ceil_div(m, {_BLOCK}), {_BLOCKS_OF_K}]"
        f" -> {_RESULT};"
        for dtype in (_FLOAT8, narrow.HIF8)
    )
    + f"x1 {_FLOAT8}[m, k], x2 {_FLOAT8}[<k, n>], scale {narrow.SCALES}[<{_GROUPS}, n>, 2],"
    f" -offset, {_ADDED}, {_MX_SCALE};"
    f"x1 {narrow.E2M1}[m, k], x2 {narrow.E2M1}[n, k], scale {narrow.SCALES}[n, {_GROUPS}, 2],"
    f" -offset, {_ADDED}, {_MX_SCALE}, {_EVEN}"
)
_product = product_by(SIGNATURE)


def build_narrow_product(case: Case, make: TensorMaker) -> Call:
    product = _product(case)
    x1, x2, scale, *_ = case.inputs or ()
    per_token, bias = given(case, _PER_TOKEN), given(case, _BIAS)
    operands = product.turned(narrow.numbers_like(x1, make), narrow.numbers_like(x2, make))
    of_weight, of_tokens = (_scales(slot, make) for slot in (scale, rules.accepted(per_token)))
    if product.transposes_b and of_weight.dim() > 1:
        of_weight = of_weight.transpose(0, 1)
    out = rules.accepted(output_slot(case)).dtype
    return Call(
        *operands,
        of_weight,
        pertoken_scale=of_tokens,
        bias=like.normal(bias, make),
        output_dtype=make.dtype(out),
        **narrow.numbers_of(case, _DTYPES),
    )


def build_for_npu(case: Case, make: TensorMaker) -> Call:
    call, settings = build_narrow_product(case, make), dict[str, Any]()
    if _is_mx(case):
        dtypes = dict.fromkeys(("scale_dtype", "pertoken_scale_dtype"), narrow.E8M0)
        settings = {"group_sizes": [1, 1, narrow.GROUP], **dtypes}
    elif rows := _block_rows(case):
        settings = {"group_sizes": [rows, _BLOCK, _BLOCK]}
    return Call(*call.args, **call.kwargs, **settings)


def narrow_product(
    torch: Any, x1: Any, x2: Any, scale: Any, per_token: Any, bias: Any, dtypes: _Dtypes
) -> Any:
    """Return the FLOAT product of matrices by their scales."""
    if scale.dtype == torch.uint8:
        rows = narrow.scaled_numbers(torch, x1, per_token, dtypes[0])
        columns = narrow.scaled_numbers(torch, x2.transpose(0, 1), scale.transpose(0, 1), dtypes[1])
        total = rows @ columns.transpose(0, 1)
    elif scale.dim() > 1:
        rows = narrow.values(torch, x1, dtypes[0]) * _spread(per_token, x1.shape)
        total = rows @ (narrow.values(torch, x2, dtypes[1]) * _spread(scale, x2.shape))
    else:
        rows, columns = (narrow.values(torch, *one) for one in zip((x1, x2), dtypes, strict=True))
        total = (rows @ columns).mul_(scale).mul_(per_token.unsqueeze(-1))
    return total if bias is None else total.add_(bias)


def _spread(scale: Any, shape: Shape) -> Any:
    """Return a scale (rows, columns) for each number, of blocks or of whole rows."""
    for dim in range(2):
        if scale.shape[dim] != shape[dim]:
            scale = scale.repeat_interleave(_BLOCK, dim).narrow(dim, 0, shape[dim])
    return scale


def _scales(slot: Any, make: TensorMaker) -> Any:
    if spelling(slot) == narrow.SCALES:
        return narrow.scales_like(slot, make)
    return like.uniform_like(slot, make, 0.05, 0.2)


def _is_mx(case: Case) -> bool:
    return spelling(given(case, _SCALE)) == narrow.SCALES


def _block_rows(case: Case) -> int:
    """Return the rows of a block of tokens; 0 if the scales are not of blocks."""
    if len(input_shape(case, _SCALE)) != 2:
        return 0
    return 1 if input_shape(case, _PER_TOKEN)[0] == input_shape(case, _X1)[0] else _BLOCK


# FLOAT8 rows and a FLOAT4 weight, both with scales of MX: of QuantBatchMatmulV4, which has other
# slots. vLLM-Ascend 0.23 serves W4A8_MXFP so, but with a weight in blocks of the device.

_V4_BIAS, _V4_ROW_SCALE, _V4_SCALE = 2, 3, 4
MIXED_SIGNATURE = (
    f"x1 {narrow.E4M3}[m, k], x2 {narrow.E2M1}[n, k], bias DT_BF16[1, n]?,"
    f" x1_scale {narrow.SCALES}[m, {_GROUPS}, 2], x2_scale {narrow.SCALES}[n, {_GROUPS}, 2],"
    " -y_scale, -x1_offset, -x2_offset, -y_offset, -x2_table -> y DT_BF16[m, n]"
    f" where m * k * n > 0, k % {narrow.PAIR} == 0"
)
_mixed_product = product_by(MIXED_SIGNATURE)


def mixed_build(case: Case, make: TensorMaker) -> Call:
    product, bias = _mixed_product(case), given(case, _V4_BIAS)
    x1, x2 = (narrow.numbers_like(slot, make) for slot in (case.inputs or ())[: _X2 + 1])
    of_rows, of_weight = (
        narrow.scales_like((case.inputs or ())[i], make) for i in (_V4_ROW_SCALE, _V4_SCALE)
    )
    return Call(
        *product.turned(x1, x2),
        of_weight.transpose(0, 1),
        pertoken_scale=of_rows,
        bias=like.normal(bias, make),
        output_dtype=make.dtype("DT_BF16"),
        **narrow.numbers_of(case, _DTYPES),
    )


def mixed_build_for_npu(case: Case, make: TensorMaker) -> Call:
    call = mixed_build(case, make)
    dtypes = dict.fromkeys(("scale_dtype", "pertoken_scale_dtype"), narrow.E8M0)
    return Call(*call.args, **call.kwargs, **dtypes, group_sizes=[0, 0, narrow.GROUP])


# Products by expert. The positions are those of tokens, weights and their scales: of MX, of tokens
# and columns (E,N), or of blocks of 128 by 128 of the weights with 128 neighbours of the tokens
# (aclnnGroupedMatmulV5). FLOAT4 weights lie transposed, as vLLM-Ascend 0.23 serves W4A4_MXFP4.

# dtypes of tokens and weights, weights, scale of weights, scale of tokens, further conditions
BY_COLUMNS = tuple(
    (dtype, "[experts, <k, n>]", "FLOAT[experts, n]", "FLOAT[t]", "")
    for dtype in (_FLOAT8, narrow.HIF8)
)
_BY_BLOCKS = tuple(
    (dtype, "[experts, <k, n>]", f"FLOAT[experts, {_BLOCKS}]", f"FLOAT[t, {_BLOCKS_OF_K}]", "")
    for dtype in (_FLOAT8, narrow.HIF8)
)
_OF_TOKENS = f"{narrow.SCALES}[t, {_GROUPS}, 2]"
BY_GROUPS = (
    (_FLOAT8, "[experts, <k, n>]", f"{narrow.SCALES}[experts, <{_GROUPS}, n>, 2]", _OF_TOKENS, ""),
    (
        *(narrow.E2M1, "[experts, n, k]", f"{narrow.SCALES}[experts, n, {_GROUPS}, 2]"),
        *(_OF_TOKENS, f", {_EVEN}"),
    ),
)
EXPERT_FORMS = (*BY_COLUMNS, *_BY_BLOCKS, *BY_GROUPS)


def experts(
    case: Case, sizes: GroupedProduct, positions: tuple[int, int, int, int], make: TensorMaker
) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokens, weights (E,K,N) and both scales; transposed weights and theirs are views."""
    x, weight, scale, per_token = ((case.inputs or ())[i] for i in positions)
    numbers, of_weight = (
        narrow.narrow_numbers(sizes.weight, spelling(weight), make),
        _scales(scale, make),
    )
    if sizes.transposes_weight:
        numbers = numbers.transpose(1, 2)
        of_weight = of_weight.transpose(1, 2) if of_weight.dim() > 2 else of_weight
    scales = {"scale": of_weight, "per_token_scale": _scales(per_token, make)}
    return narrow.numbers_like(x, make), numbers, scales
