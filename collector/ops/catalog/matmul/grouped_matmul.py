"""One product for each expert, of the tokens that were routed to it."""

from typing import Any

from collector.case import Case, Slot
from collector.ops.catalog.matmul._grouped import (
    GroupedProduct,
    grouped_traffic,
    groups_fit,
    read_grouped_product,
    stored_weight,
    written_rows,
)
from collector.ops.catalog.matmul._nibbles import (
    COLUMNS,
    dtypes_fit,
    is_nibbles,
    multiply_nibbles,
    nibble_tensors,
    nibbles_fit,
    scale_shape,
)
from collector.ops.catalog.matmul._product import flops_by, group_by_weight
from collector.ops.dtypes import spelling
from collector.ops.parts.int8 import int8_product, restored, to_int8
from collector.ops.parts.quant_scale import PACKED, decoded, packed_scale, small_scale
from collector.ops.parts.shares import group_ends
from collector.ops.slots import given, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker
from collector.vocabulary import FRACTAL_NZ

_X, _WEIGHT, _BIAS, _SCALE, _OFFSET = range(5)
_ANTIQUANT_SCALE, _ANTIQUANT_OFFSET, _GROUPS, _PER_TOKEN = range(5, 9)
_SLOTS = (
    *("x", "weight", "bias", "scale", "offset", "antiquant_scale", "antiquant_offset"),
    *("group_list", "per_token_scale"),
)
_OPTIONAL = frozenset(range(len(_SLOTS))) - {_X, _WEIGHT, _GROUPS}
_BY_COLUMN = (_BIAS, _SCALE, _ANTIQUANT_SCALE, _ANTIQUANT_OFFSET)
_FLOATS = {"FLOAT", "FLOAT16", "DT_BF16"}


def _sizes(case: Case) -> GroupedProduct | None:
    return read_grouped_product(case, lambda n: n)


def _build(case: Case, make: TensorMaker) -> Call:
    sizes = _sizes(case)
    counts = sizes.counts if sizes else ()
    out = output_slot(case)
    dtype = make.dtype(out.dtype if out else (case.inputs or ())[_X].dtype)
    x, weight, own = _operands(case, make)
    options = {**_options(case, make), **own}
    return Call((x, weight), {**options, "counts": counts, "output_dtype": dtype})


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    settings = dict(call.kwargs)
    counts = settings.pop("counts")
    x, weight = call.args
    lists = {name: [tensor] for name, tensor in settings.items() if name in _SLOTS}
    groups = make.tensor(counts, "INT64") if is_nibbles(case) else group_ends(counts, "INT64", make)
    return Call(
        ([x], [weight]),
        {
            **lists,
            "group_list": groups,
            "group_list_type": int(is_nibbles(case)),
            "group_type": 0,
            "split_item": 3,
            "output_dtype": settings["output_dtype"],
        },
    )


def _operands(case: Case, make: TensorMaker) -> tuple[Any, Any, dict[str, Any]]:
    """Tokens, weights, and what of the options follows from these."""
    (x, weight), sizes = (case.inputs or ())[:2], _sizes(case)
    tokens = _numbers(x.shape or (), x, make)
    if sizes and is_nibbles(case):
        return tokens, *nibble_tensors(weight, sizes, make)
    return tokens, stored_weight(weight, sizes, make, _numbers), {}


def _numbers(shape: tuple[int, ...], slot: Slot, make: TensorMaker) -> Any:
    if spelling(slot) == "INT8":
        return make.integers(shape, slot.dtype, -127, 128)
    return make.normal(shape, slot.dtype)


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    """The optional tensors by the API's names."""
    tensors = {}
    for position in sorted(_OPTIONAL):
        slot = given(case, position)
        if slot is None or (is_nibbles(case) and position in (_BIAS, _SCALE)):
            continue
        shape = slot.shape or ()
        if position == _SCALE and spelling(slot) in PACKED:
            tensors["scale"] = packed_scale(shape, make)
        elif position in (_SCALE, _ANTIQUANT_SCALE):
            tensors[_SLOTS[position]] = small_scale(shape, slot.dtype, make)
        elif position == _PER_TOKEN:
            tensors["per_token_scale"] = make.uniform(shape, slot.dtype, 0.5, 1.5)
        else:
            tensors[_SLOTS[position]] = make.normal(shape, slot.dtype)
    return tensors


def _reference(
    torch: Any,
    x: Any,
    weight: Any,
    *,
    counts: tuple[int, ...],
    output_dtype: Any,
    per_token_scale: Any = None,
    **by_expert: Any,
) -> Any:
    used = sum(counts)
    is_packed = weight.dtype == torch.int32
    width = weight.shape[2] * (COLUMNS if is_packed else 1)
    out = x.new_empty((x.shape[0], width), dtype=output_dtype)
    rows = zip(x[:used].split(counts), out[:used].split(counts), strict=True)
    scales: Any = (None,) * len(counts)
    if per_token_scale is not None:
        scales = per_token_scale[:used].split(counts)
    for expert, ((tokens, place), scale) in enumerate(zip(rows, scales, strict=True)):
        own = {name: tensor[expert] for name, tensor in by_expert.items()}
        if not counts[expert]:
            continue
        if is_packed:
            multiply_nibbles(torch, tokens, weight[expert], place, scale, **own)
        elif x.dtype == torch.int8:
            _multiply_quantised(torch, tokens, weight[expert], place, scale, **own)
        else:
            _multiply(torch, tokens, weight[expert], place, **own)
    return out


def _multiply(
    torch: Any,
    tokens: Any,
    weight: Any,
    place: Any,
    *,
    bias: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
) -> None:
    """Floating-point tokens; an INT8 weight is given back as numbers first."""
    if antiquant_scale is not None:
        weight = restored(weight, antiquant_scale, antiquant_offset)
    torch.mm(tokens, weight, out=place)
    if bias is not None:
        place.add_(bias)


def _multiply_quantised(
    torch: Any,
    tokens: Any,
    weight: Any,
    place: Any,
    per_token: Any,
    *,
    bias: Any = None,
    scale: Any = None,
) -> None:
    """INT8 tokens: exact sums, and then scales of columns and of rows."""
    total = int8_product(torch, tokens, weight)
    if bias is not None:
        total.add_(bias)
    if scale is not None:
        total = total * decoded(torch, scale)
    if per_token is not None:
        total.mul_(per_token.unsqueeze(-1))
    place.copy_(to_int8(torch, total) if place.dtype == torch.int8 else total)


def _launch(grouped: Any, x: Any, weight: Any, **settings: Any) -> Any:
    return grouped(x, weight, **settings)[0]


def _dtypes_are_legal(case: Case) -> bool:
    """The combinations that npu_grouped_matmul documents for A2 and A3."""
    dtypes = [spelling(given(case, i)) for i in range(len(_SLOTS))]
    x, weight, bias, scale, per_token = (
        dtypes[i] for i in (_X, _WEIGHT, _BIAS, _SCALE, _PER_TOKEN)
    )
    out, antiquant = spelling(output_slot(case)), dtypes[_ANTIQUANT_SCALE]
    if x in _FLOATS:
        plain = weight == x and not antiquant
        weight_only = weight == "INT8" and antiquant == x and x != "FLOAT"
        return (
            (plain or weight_only)
            and out in ("", x)
            and bias in ("", "FLOAT16" if x == "FLOAT16" else "FLOAT")
            and dtypes[_ANTIQUANT_OFFSET] in ("", antiquant)
            and not scale
            and not per_token
        )
    if (x, weight) == ("INT8", "INT4"):
        is_plain = not antiquant and not dtypes[_ANTIQUANT_OFFSET]
        return is_plain and dtypes_fit(bias, scale, per_token, out)
    by_output = {
        "INT32": ("",),
        "INT8": PACKED,
        "DT_BF16": ("DT_BF16", "FLOAT"),
        "FLOAT16": ("FLOAT",),
    }
    return (
        (x, weight) == ("INT8", "INT8")
        and scale in by_output.get(out, ())
        and bias in ("", "INT32")
        and (not per_token or (per_token == "FLOAT" and out in ("DT_BF16", "FLOAT16")))
        and not antiquant
        and not dtypes[_ANTIQUANT_OFFSET]
    )


def _options_fit(case: Case) -> bool:
    sizes, groups = _sizes(case), given(case, _GROUPS)
    if sizes is None or groups is None or spelling(groups) != "INT64":
        return False
    columns = [given(case, i) for i in _BY_COLUMN if i != _SCALE]
    scale = given(case, _SCALE)
    scales = scale_shape(sizes) if is_nibbles(case) else (sizes.experts, sizes.n)
    per_token = given(case, _PER_TOKEN)
    return (
        groups.shape == (sizes.experts,)
        and all(slot is None or slot.shape == (sizes.experts, sizes.n) for slot in columns)
        and (scale is None or scale.shape == scales)
        and (per_token is None or per_token.shape == (sizes.tokens,))
    )


def _blocks_fit(case: Case) -> bool:
    """aclnnGroupedMatmulWeightNz takes no FLOAT, and gives no INT8."""
    is_stored = (case.inputs or ())[_WEIGHT].format == FRACTAL_NZ
    x, out = spelling(given(case, _X)), spelling(output_slot(case))
    return not is_stored or (x != "FLOAT" and out != "INT8")


OP = OpSpec(
    kernel="GroupedMatmul",
    call="torch_npu.npu_grouped_matmul",
    assumes="as many rows for each expert, but for Runtime group_list_values",
    slots=_SLOTS,
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(_sizes),
    traffic=lambda case: grouped_traffic(case, _sizes(case), _OPTIONAL),
    group=group_by_weight,
    written=lambda case: written_rows(_sizes(case)),
    packed={_SCALE: "UINT64", _WEIGHT: "INT4"},
    npu=NpuCall(run=_launch, build=_build_for_npu, nz=frozenset({_WEIGHT})),
    constraints=(
        Constraint(
            "tokens (T,K) are wanted, weights (E,K,N) or (E,N,K), blocks (E,N,K,rows,columns) in "
            "FRACTAL_NZ, and (T,N) out",
            lambda case: _sizes(case) is not None,
        ),
        Constraint(
            "INT4 weights (E,K,N) want K a multiple of 256 up to 18432, N a multiple of 8",
            lambda case: (
                not is_nibbles(case) or ((sizes := _sizes(case)) is not None and nibbles_fit(sizes))
            ),
        ),
        Constraint("an offset cannot be replayed", lambda case: given(case, _OFFSET) is None),
        Constraint(
            "the dtypes of x, weight, bias, scales and output do not go together", _dtypes_are_legal
        ),
        Constraint("FRACTAL_NZ weights want no FLOAT, and no INT8 out", _blocks_fit),
        Constraint(
            "a group list (E INT64) is wanted; bias and scales want (E,N), scales of INT4 "
            "weights (E,K/256,N), a scale of tokens (T)",
            _options_fit,
        ),
        groups_fit(_sizes),
    ),
)
