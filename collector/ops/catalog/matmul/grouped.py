"""One product per expert, of the tokens that were routed to it."""

from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops import rules
from collector.ops.catalog.matmul import _grouped
from collector.ops.catalog.matmul._grouped import GroupedProduct
from collector.ops.catalog.matmul._product import group_by_weight
from collector.ops.parts import int8, like
from collector.ops.parts.tensors import flops_by, group_ends
from collector.ops.slots import agrees, given, input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

# INT4 weights of experts with INT8 tokens (W4A8), and a scale for each group of 256 rows.
#
# torch holds eight numbers in an INT32, the first in the lowest bits. The kernel splits tokens into
# halves of four bits, and requires as bias the resulting term: 8 times the sum of weights by
# scales. The limits are those that aclnnGroupedMatmulV5 documents for A2 and A3.
GROUP_ROWS = 256
_MOST_ROWS = 18432
COLUMNS = 8  # in an INT32


def is_nibbles(case: Case) -> bool:
    """Return whether the weights have four bits."""
    return spelling(given(case, 1)) == "INT4"


def nibbles_fit(sizes: GroupedProduct) -> bool:
    """Return whether the kernel takes INT4 weights of these sizes."""
    return (
        not sizes.transposes_weight
        and 0 < sizes.k <= _MOST_ROWS
        and not sizes.k % GROUP_ROWS
        and not sizes.n % COLUMNS
    )


def scale_shape(sizes: GroupedProduct) -> Shape:
    """Return the shape of a scale for each group of rows and each column."""
    return sizes.experts, sizes.k // GROUP_ROWS, sizes.n


def dtypes_fit(bias: str, scale: str, per_token: str, out: str) -> bool:
    """Return whether the dtypes are the one combination that is documented without an offset."""
    is_out = out in ("DT_BF16", "FLOAT16")
    return is_out and (bias, per_token) == ("FLOAT", "FLOAT") and scale in int8.PACKED


def nibble_tensors(
    weight: Slot, sizes: GroupedProduct, make: TensorMaker
) -> tuple[Any, dict[str, Any]]:
    """Return the weights as INT32 in the slot's format, with their scale and bias."""
    torch = make.torch
    pairs = make.integers((sizes.experts, sizes.k, sizes.n // 2), "INT8", -128, 128)
    scale = int8.packed_scale(scale_shape(sizes), make)
    both = zip(pairs, scale, strict=True)
    bias = torch.stack([8 * _scaled(torch, pair, one).sum(0) for pair, one in both])
    packed = make.stored(pairs, weight.format).view(make.dtype("INT32"))
    return packed, {"scale": scale, "bias": bias}


def multiply_nibbles(
    torch: Any, tokens: Any, weight: Any, place: Any, per_token: Any, *, scale: Any, bias: Any
) -> None:
    """Write the product of one expert; only the kernel needs the bias, a correction term."""
    total = tokens.float() @ _scaled(torch, weight.view(torch.int8), scale)
    place.copy_(total.mul_(per_token.unsqueeze(-1)))


def _scaled(torch: Any, pairs: Any, scale: Any) -> Any:
    """Return (K,N) numbers from (K,N/2) bytes, times their scales.

    The bytes are split in FLOAT, which works on every device."""
    both = pairs.float()
    high = (both / 16).floor()
    low = both - 16 * high
    numbers = torch.stack((low - 16 * (low > 7), high), -1).flatten(-2)
    groups = numbers.unflatten(0, (-1, GROUP_ROWS))
    return (groups * int8.decoded(torch, scale).unsqueeze(1)).flatten(0, 1)


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
    return _grouped.read_grouped_product(case, lambda n: n)


def _build(case: Case, make: TensorMaker) -> Call:
    counts, out = rules.accepted(_sizes(case)).counts, output_slot(case)
    dtype = make.dtype(out.dtype if out else (case.inputs or ())[_X].dtype)
    x, weight, own = _operands(case, make)
    options = {**_options(case, make), **own}
    return Call(x, weight, **options, counts=counts, output_dtype=dtype)


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    settings = dict(call.kwargs)
    counts = settings.pop("counts")
    x, weight = call.args
    lists = {name: [tensor] for name, tensor in settings.items() if name in _SLOTS}
    groups = make.tensor(counts, "INT64") if is_nibbles(case) else group_ends(counts, "INT64", make)
    return Call(
        [x],
        [weight],
        **lists,
        group_list=groups,
        group_list_type=int(is_nibbles(case)),
        group_type=0,
        split_item=3,
        output_dtype=settings["output_dtype"],
    )


def _operands(case: Case, make: TensorMaker) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokens, weights, and the options that depend on them."""
    (x, weight), sizes = (case.inputs or ())[:2], rules.accepted(_sizes(case))
    tokens = _numbers(x.shape or (), x, make)
    if is_nibbles(case):
        return tokens, *nibble_tensors(weight, sizes, make)
    stored = make.stored(_numbers(sizes.weight, weight, make), weight.format)
    return tokens, stored.transpose(1, 2) if sizes.transposes_weight else stored, {}


def _numbers(shape: tuple[int, ...], slot: Slot, make: TensorMaker) -> Any:
    if spelling(slot) == "INT8":
        return make.integers(shape, slot.dtype, -127, 128)
    return make.normal(shape, slot.dtype)


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    tensors = {}
    for position in sorted(_OPTIONAL):
        slot = given(case, position)
        if slot is None or (is_nibbles(case) and position in (_BIAS, _SCALE)):
            continue
        if position in (_SCALE, _ANTIQUANT_SCALE):
            tensors[_SLOTS[position]] = int8.scale_like(slot, make)
        elif position == _PER_TOKEN:
            tensors["per_token_scale"] = like.uniform(slot, make, 0.5, 1.5)
        else:
            tensors[_SLOTS[position]] = like.normal(slot, make)
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
    """Multiply floating-point tokens; an INT8 weight is dequantised first."""
    if antiquant_scale is not None:
        weight = int8.dequantised(weight, antiquant_scale, antiquant_offset)
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
    """Multiply INT8 tokens: exact sums, then scales of columns and of rows."""
    total = int8.int8_product(torch, tokens, weight)
    if bias is not None:
        total.add_(bias)
    if scale is not None:
        total = total * int8.decoded(torch, scale)
    if per_token is not None:
        total.mul_(per_token.unsqueeze(-1))
    place.copy_(int8.to_int8(torch, total) if place.dtype == torch.int8 else total)


def _launch(grouped: Any, x: Any, weight: Any, **settings: Any) -> Any:
    return grouped(x, weight, **settings)[0]


def _dtypes_are_legal(case: Case) -> bool:
    """Return whether npu_grouped_matmul documents the dtypes for A2 and A3."""
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
        "INT8": int8.PACKED,
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
    sizes, groups = rules.accepted(_sizes(case)), given(case, _GROUPS)
    if groups is None or spelling(groups) != "INT64":
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
    """Return whether aclnnGroupedMatmulWeightNz takes the weights: no FLOAT, and no INT8 output."""
    is_stored = (case.inputs or ())[_WEIGHT].format == FRACTAL_NZ
    x, out = spelling(given(case, _X)), spelling(output_slot(case))
    return not is_stored or (x != "FLOAT" and out != "INT8")


# One product per expert, of the tokens that were routed to it.
GROUPED_MATMUL = OpSpec(
    kernel="GroupedMatmul",
    call="torch_npu.npu_grouped_matmul",
    assumes="as many rows for each expert, unless Runtime group_list_values names them",
    slots=_SLOTS,
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(_sizes),
    traffic=lambda case: _grouped.grouped_traffic(case, rules.accepted(_sizes(case)), _OPTIONAL),
    group=group_by_weight,
    written=lambda case: _grouped.written_rows(rules.accepted(_sizes(case))),
    packed={_SCALE: "UINT64", _WEIGHT: "INT4"},
    npu=NpuCall(run=_launch, build=_build_for_npu, nz=frozenset({_WEIGHT})),
    constraints=(
        rules.reads(
            "expected tokens (T,K), weights (E,K,N) or (E,N,K), blocks (E,N,K,rows,columns) in "
            "FRACTAL_NZ, and an output (T,N)",
            _sizes,
        ),
        Constraint(
            "expected K as a multiple of 256 up to 18432 and N as a multiple of 8 for INT4 "
            "weights (E,K,N)",
            lambda case: not is_nibbles(case) or nibbles_fit(rules.accepted(_sizes(case))),
        ),
        rules.absent("an offset cannot be replayed", _OFFSET),
        Constraint(
            "the dtypes of x, weight, bias, scales and output do not go together: expected a "
            "combination that npu_grouped_matmul documents",
            _dtypes_are_legal,
        ),
        Constraint(
            "FRACTAL_NZ weights: expected another dtype than FLOAT, and an output other than INT8",
            _blocks_fit,
        ),
        Constraint(
            "expected a group list (E INT64), bias and scales (E,N), scales of INT4 weights "
            "(E,K/256,N), and a scale of tokens (T)",
            _options_fit,
        ),
        _grouped.groups_fit(_sizes),
    ),
)


_WEIGHT_SCALE, _X_SCALE, _SWIGLU_GROUPS = range(2, 5)
_MOST_COLUMNS = 10240
_GATE_FLOPS = 8  # per element of y: 5 for SwiGlu, then a maximum, a quotient and a rounding


def _swiglu_sizes(case: Case) -> GroupedProduct | None:
    """Return the sizes; the output has half of the weight's columns, which are gates and values."""
    sizes = _grouped.read_grouped_product(case, lambda n: n // 2)
    return sizes if sizes and sizes.n and not sizes.n % 2 and not sizes.transposes_weight else None


def _tensors(case: Case, make: TensorMaker, format: str) -> tuple[Any, Any, Any, Any]:
    x, weight, weight_scale, x_scale, _ = case.inputs or ()
    shape = rules.accepted(_swiglu_sizes(case)).weight
    return (
        like.integers(x, make, -127, 128),
        make.stored(make.integers(shape, weight.dtype, -127, 128), format),
        int8.scale_like(weight_scale, make),
        like.uniform(x_scale, make, 0.5, 1.5),
    )


def _swiglu_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with the weight in FRACTAL_NZ, which the kernel assumes for any format."""
    x, weight, weight_scale, x_scale = _tensors(case, make, FRACTAL_NZ)
    ends = group_ends(
        rules.accepted(_swiglu_sizes(case)).counts, (case.inputs or ())[_SWIGLU_GROUPS].dtype, make
    )
    named = {"group_list": ends, "weight_scale": weight_scale, "x_scale": x_scale}
    return Call(x, weight, **named)  # by name: their order differs between the two libraries


def _swiglu_launch(grouped: Any, *args: Any, **named: Any) -> Any:
    y, scale, _offset = grouped(*args, **named)
    return y, scale


def _swiglu_reference(
    torch: Any, x: Any, weight: Any, weight_scale: Any, x_scale: Any, *, counts: tuple[int, ...]
) -> Any:
    used = sum(counts)
    wide = x.new_empty((x.shape[0], weight.shape[2]), dtype=torch.float32)
    places = zip(x[:used].split(counts), wide[:used].split(counts), strict=True)
    for expert, (tokens, place) in enumerate(places):
        if counts[expert]:
            total = int8.int8_product(torch, tokens, weight[expert])
            torch.mul(total, weight_scale[expert].float(), out=place)
    gate, value = wide.mul_(x_scale.unsqueeze(-1)).chunk(2, -1)
    return int8.quantise_rows(torch, torch.nn.functional.silu(gate).mul_(value))


def _flops(case: Case) -> int:
    sizes = rules.accepted(_swiglu_sizes(case))
    return sizes.flops + _GATE_FLOPS * sizes.used * sizes.n // 2


def _sizes_fit(case: Case) -> bool:
    sizes = rules.accepted(_swiglu_sizes(case))
    return (
        sizes.n <= _MOST_COLUMNS
        and input_shape(case, _WEIGHT_SCALE) == (sizes.experts, sizes.n)
        and input_shape(case, _X_SCALE) == (sizes.tokens,)
        and input_shape(case, _SWIGLU_GROUPS) == (sizes.experts,)
        and agrees(case, 1, (sizes.tokens,))
    )


# The first half of an expert layer: products by expert, SwiGlu, and rows quantised to INT8.
GROUPED_MATMUL_SWIGLU_QUANT = OpSpec(
    kernel="GroupedMatmulSwigluQuant",
    call="torch_npu.npu_grouped_matmul_swiglu_quant",
    assumes="as many rows for each expert, unless Runtime group_list_values names them",
    slots=("x", "weight", "weight_scale", "x_scale", "group_list"),
    reference=_swiglu_reference,
    build=lambda case, make: Call(
        *_tensors(case, make, ""), counts=rules.accepted(_swiglu_sizes(case)).counts
    ),
    flops=_flops,
    traffic=lambda case: _grouped.grouped_traffic(
        case, rules.accepted(_swiglu_sizes(case)), frozenset()
    ),
    group=group_by_weight,
    written=lambda case: _grouped.written_rows(rules.accepted(_swiglu_sizes(case))),
    npu=NpuCall(
        run=_swiglu_launch,
        build=_swiglu_build_for_npu,
        nz=frozenset({_WEIGHT}),
        served="torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz",
    ),
    constraints=(
        rules.inputs_are(("INT8",), (_X, _WEIGHT)),
        rules.inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_WEIGHT_SCALE,)),
        rules.inputs_are(("FLOAT",), (_X_SCALE,)),
        rules.inputs_are(("INT64",), (_SWIGLU_GROUPS,)),
        rules.outputs_are(("INT8",), (0,)),
        rules.outputs_are(("FLOAT",), (1,)),
        rules.reads(
            "expected tokens (T,K), weights (E,K,N) with an even N, and an output (T,N/2)",
            _swiglu_sizes,
        ),
        Constraint(
            f"expected a weight scale (E, N up to {_MOST_COLUMNS}), a scale of tokens (T) for "
            "input and output, and a group list (E)",
            _sizes_fit,
        ),
        _grouped.groups_fit(_swiglu_sizes),
    ),
)
