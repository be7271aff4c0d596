"""One product per expert, of the tokens that were routed to it."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case, Slot
from collector.model.lookup import make_lookups
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops.catalog.matmul import _grouped, _narrow
from collector.ops.catalog.matmul._grouped import GroupedProduct
from collector.ops.catalog.matmul._product import group_by_weight
from collector.ops.launching import As, arguments_at
from collector.ops.parts import int8, like, narrow
from collector.ops.parts.narrow import is_narrow
from collector.ops.parts.tensors import flops_by, group_ends, swiglu
from collector.ops.signature import parse_signature
from collector.ops.slots import given, input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, as_printed

_X, _WEIGHT, _BIAS, _SCALE, _OFFSET = range(5)
_ANTIQUANT_SCALE, _ANTIQUANT_OFFSET, _GROUPS, _PER_TOKEN = range(5, 9)
_DTYPES = {"x_dtype": _X, "weight_dtype": _WEIGHT}


def _form(
    x: str,
    weight: str,
    y: str,
    *,
    bias: str = "-bias",
    scale: str = "-scale",
    antiquant: str = "-antiquant_scale, -antiquant_offset",
    per_token: str = "-per_token_scale",
    where: str = "",
) -> str:
    """Return one form of the call, without the tensors that are not named."""
    return (
        f"x {x}[t, k], weight {weight}, {bias}, {scale}, -offset, {antiquant},"
        f" group_list INT64[experts], {per_token} -> y {y} where {_grouped.WEIGHT}{where}"
    )


# The dtypes that npu_grouped_matmul documents for A2 and A3: floating-point numbers, with weights
# of their dtype, INT8 or INT4, INT8 of both with the scales of each output, and INT8 with INT4.
_BY_EXPERT = "[experts, <k, n>]"
_ANY_BIAS, _INT32_BIAS = "bias[experts, n]?", "bias INT32[experts, n]?"
_ANTIQUANT = "antiquant_scale T[experts, {0}], antiquant_offset T[experts, {0}]?"
_PACKED = "|".join(int8.PACKED)
_SIGNATURE = ";".join(
    (
        _form("T:float", f"T{_BY_EXPERT}", "T[t, n]", bias=_ANY_BIAS),
        *(
            _form(
                "INT8", f"INT8{_BY_EXPERT}", y, bias=_INT32_BIAS, scale=scale, per_token=of_tokens
            )
            for y, scale, of_tokens in (
                ("INT32[t, n]!", "-scale", "-per_token_scale"),
                ("INT8[t, n]!", f"scale {_PACKED}[experts, n]", "-per_token_scale"),
                ("DT_BF16[t, n]!", "scale DT_BF16|FLOAT[experts, n]", "per_token_scale FLOAT[t]?"),
                ("FLOAT16[t, n]!", "scale FLOAT[experts, n]", "per_token_scale FLOAT[t]?"),
            )
        ),
        _form(
            *("T:half", f"INT8{_BY_EXPERT}", "T[t, n]"),
            bias=_ANY_BIAS,
            antiquant=_ANTIQUANT.format("n"),
        ),
        _form(
            *("T:half", "INT4[experts, k, n]", "T[t, n]"),
            bias=_ANY_BIAS,
            antiquant=_ANTIQUANT.format("*groups, n"),
            where=f", {_grouped.NIBBLES}",
        ),
        # scales of columns, or of each 256 rows
        _form(
            *("INT8", "INT4[experts, k, n]", "half[t, n]!"),
            bias="bias FLOAT[experts, n]",
            scale=f"scale {_PACKED}[experts, *groups, n]",
            per_token="per_token_scale FLOAT[t]",
            where=f", {_grouped.NIBBLES}, groups == 1 or k == 256 * groups, 0 < k <= 18432",
        ),
        *(
            _form(
                *(dtype, f"{dtype}{weight}", "float[t, n]!"),
                scale=f"scale {scale}",
                per_token=f"per_token_scale {of_tokens}",
                where=where,
            )
            for dtype, weight, scale, of_tokens, where in _narrow.EXPERT_FORMS
        ),
    )
)
_SLOTS = parse_signature(_SIGNATURE).slots
_OPTIONAL = parse_signature(_SIGNATURE).optional
_sizes = _grouped.grouped_by(_SIGNATURE)
_FLOATS = {"FLOAT", "FLOAT16", "DT_BF16"}


def _build(case: Case, make: TensorMaker) -> Call:
    counts, out = _sizes(case).counts, output_slot(case)
    dtype = make.dtype(out.dtype if out else (case.inputs or ())[_X].dtype)
    x, weight, own = _operands(case, make)
    options = {**_options(case, make), **own, **narrow.numbers_of(case, _DTYPES)}
    return Call(x, weight, **options, counts=counts, output_dtype=dtype)


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    call = _build(case, make)
    settings = dict(call.kwargs)
    counts = settings.pop("counts")
    x, weight = call.args
    lists = {name: [tensor] for name, tensor in settings.items() if name in _SLOTS}
    counted = _is_split(case)
    if spelling(given(case, _SCALE)) == narrow.SCALES:
        settings |= dict.fromkeys(("scale_dtype", "per_token_scale_dtype"), narrow.E8M0)
    groups = make.tensor(counts, "INT64") if counted else group_ends(counts, "INT64", make)
    return Call(
        [x],
        [weight],
        **lists,
        group_list=groups,
        group_list_type=int(counted),
        group_type=0,
        split_item=3,
        **{name: value for name, value in settings.items() if name not in _SLOTS},
    )


def _operands(case: Case, make: TensorMaker) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokens, weights, and the options that depend on them."""
    (x, weight), sizes = (case.inputs or ())[:2], _sizes(case)
    if is_narrow(case):
        return _narrow.experts(case, sizes, (_X, _WEIGHT, _SCALE, _PER_TOKEN), make)
    tokens = _numbers(x.shape or (), x, make)
    if _grouped.is_nibbles(case):
        pairs, scale = _grouped.nibbles(sizes, make), input_shape(case, _SCALE)
        own = _grouped.split_options(pairs, scale, make) if _is_split(case) else {}
        return tokens, _grouped.packed(pairs, weight.format, make), own
    stored = make.stored(_numbers(sizes.weight, weight, make), weight.format)
    return tokens, stored.transpose(1, 2) if sizes.transposes_weight else stored, {}


def _is_split(case: Case) -> bool:
    """Return whether INT8 tokens meet INT4 weights: the kernel splits the tokens."""
    return _grouped.is_nibbles(case) and spelling(given(case, _X)) == "INT8"


def _numbers(shape: tuple[int, ...], slot: Slot, make: TensorMaker) -> Any:
    if spelling(slot) == "INT8":
        return make.integers(shape, slot.dtype, -127, 128)
    return make.normal(shape, slot.dtype)


def _options(case: Case, make: TensorMaker) -> dict[str, Any]:
    tensors = {}
    for position in sorted(_OPTIONAL):
        slot = given(case, position)
        is_made = _is_split(case) and position in (_BIAS, _SCALE)
        if slot is None or is_made or is_narrow(case):
            continue
        if position in (_SCALE, _ANTIQUANT_SCALE):
            tensors[_SLOTS[position]] = int8.scale_like(slot, make)
        elif position == _PER_TOKEN:
            tensors["per_token_scale"] = like.uniform_like(slot, make, 0.5, 1.5)
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
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
    **by_expert: Any,
) -> Any:
    used, dtypes = sum(counts), (x_dtype, weight_dtype)
    is_packed = weight.dtype == torch.int32
    width = weight.shape[2] * (_grouped.COLUMNS if is_packed else 1)
    out = x.new_empty((x.shape[0], width), dtype=output_dtype)
    rows = zip(x[:used].split(counts), out[:used].split(counts), strict=True)
    scales: Any = (None,) * len(counts)
    if per_token_scale is not None:
        scales = per_token_scale[:used].split(counts)
    for expert, ((tokens, place), scale) in enumerate(zip(rows, scales, strict=True)):
        own = {name: tensor[expert] for name, tensor in by_expert.items()}
        if not counts[expert]:
            continue
        if x.dtype.itemsize == 1 and x.dtype != torch.int8:
            sides = tokens, weight[expert], own["scale"], scale
            place.copy_(_narrow.narrow_product(torch, *sides, None, dtypes))
        elif x.dtype != torch.int8:
            _multiply(torch, tokens, weight[expert], place, **own)
        elif is_packed:
            product = _grouped.multiplied(torch, tokens, weight[expert], own["scale"])
            place.copy_(product.mul_(scale.unsqueeze(-1)))
        else:
            _multiply_quantised(torch, tokens, weight[expert], place, scale, **own)
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
    """Multiply floating-point tokens; an INT8 or INT4 weight is dequantised first."""
    if weight.dtype == torch.int32:
        weight = _grouped.dequantised_expert(torch, weight, antiquant_scale, antiquant_offset)
    elif antiquant_scale is not None:
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
        total = total * int8.scale_values(torch, scale)
    if per_token is not None:
        total.mul_(per_token.unsqueeze(-1))
    place.copy_(int8.to_int8(torch, total) if place.dtype == torch.int8 else total)


def _launch(grouped: Any, x: Any, weight: Any, **settings: Any) -> Any:
    return grouped(x, weight, **settings)[0]


def _bias_fits(case: Case) -> bool:
    x, bias = spelling(given(case, _X)), spelling(given(case, _BIAS))
    return x not in _FLOATS or bias in ("", "FLOAT16" if x == "FLOAT16" else "FLOAT")


def _blocks_fit(case: Case) -> bool:
    """Return whether aclnnGroupedMatmulWeightNz takes the weights in blocks."""
    is_stored = (case.inputs or ())[_WEIGHT].format == FRACTAL_NZ
    x, out = spelling(given(case, _X)), spelling(output_slot(case))
    is_only_weight = _grouped.is_nibbles(case) and not _is_split(case)
    is_other = x == "FLOAT" or out == "INT8" or is_only_weight or is_narrow(case)
    return not (is_stored and is_other)


# One product per expert, of the tokens that were routed to it.
GROUPED_MATMUL = OpSpec(
    kernel="GroupedMatmul",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_matmul",
    assumes="as many rows for each expert, unless Runtime group_list_values names them",
    signature=_SIGNATURE,
    reference=_reference,
    build=_build,
    flops=flops_by(_sizes),
    traffic=lambda case: _grouped.grouped_traffic(case, _sizes(case), _OPTIONAL),
    group=group_by_weight,
    written=lambda case: _grouped.written_rows(_sizes(case)),
    packed={_SCALE: "UINT64", _WEIGHT: "INT4"},
    narrow=frozenset((*narrow.BYTE_DTYPES, narrow.E2M1, narrow.SCALES)),
    npu=NpuCall(run=_launch, build=_build_for_npu, nz=frozenset({_WEIGHT})),
    constraints=(
        Constraint("expected a FLOAT16 bias with FLOAT16, FLOAT with others", _bias_fits),
        Constraint(
            "FRACTAL_NZ weights: expected another dtype than FLOAT, an output other than INT8, "
            "and INT8 tokens with INT4 weights",
            _blocks_fit,
        ),
        _grouped.groups_fit(_sizes),
    ),
    lookups=make_lookups(
        "tensor_cast.grouped_matmul.default",
        "tensor_cast.grouped_matmul_quant.default",
        "tensor_cast.grouped_matmul_quant_int4.default",
        "tensor_cast.grouped_matmul_fp8.default",
        "tensor_cast.grouped_matmul_mxfp4.default",
        "tensor_cast.grouped_matmul_swiglu.default",
    ),
    launched_by={
        name: arguments_at(group_list=8, per_token_scale=7, outputs=output)
        for name, output in (
            ("aclnnGroupedMatmulV4", 16),
            ("aclnnGroupedMatmulV5", 17),
            ("aclnnGroupedMatmulWeightNz", 18),
        )
    },
    shown={"weight": As.INT4, "scale": As.UINT64},
)


# The first half of an expert layer, in two kernels that differ in the order of their inputs. All
# functions here read the order of the first one; older releases of it have no assistance matrix.
_WEIGHT_SCALE, _X_SCALE, _ASSISTANCE, _SWIGLU_GROUPS = range(2, 6)
_FROM_V2, _TO_V2 = (0, 3, 4, 1, 5, 2), (0, 3, 5, 1, 2, 4)
_NOTHING = Slot(None, "", "")
_BY_TOKEN, _MX = 0, 2
_GATE_FLOPS = 8  # per element of y: 5 for SwiGlu, then a maximum, a quotient and a rounding


def _gate_forms(*forms: tuple[str, ...], is_v2: bool) -> str:
    """Return the signature of these arguments, outputs and conditions, in the order of a kernel."""
    found = []
    for x, weight, scale, of_tokens, matrix, y, where in forms:
        slots = (
            *(f"x {x}[t, k]", f"weight {weight}", f"weight_scale {scale}", f"x_scale {of_tokens}"),
            *(matrix.format("weight_assist" if is_v2 else "weight_assistance"), _GROUP_LIST),
        )
        ordered = (*(slots[i] for i in _TO_V2), "-bias", "-smooth_scale") if is_v2 else slots
        limits = f"{_grouped.WEIGHT}, n > 0, n % 2 == 0{where}"
        found.append(f"{', '.join(ordered)} -> {y} where {limits}")
    return ";".join(found)


_GROUP_LIST, _MATRIX = "group_list INT64[experts]", "{}_matrix"
_BY_INT8 = (
    *("INT8", "INT8[experts, k, n]", "float[experts, n]", "FLOAT[t]", f"-{_MATRIX}"),
    *("y INT8[t, n // 2], y_scale FLOAT[t]", ", n <= 10240"),
)
_BY_INT4 = (
    *("INT8", "INT4[experts, k, n]", f"{_PACKED}[experts, *groups, n]", "FLOAT[t]"),
    *(f"{_MATRIX} FLOAT[experts, n]", "y INT8[t, n // 2], y_scale FLOAT[t]"),
    f", n <= 10240, {_grouped.NIBBLES}, k <= 19999",
)


def _gated(form: tuple[str, ...], y_scale: str, columns: str = "") -> tuple[str, ...]:
    """Return a form with its quantised result: like the tokens, or FLOAT8 of FLOAT4."""
    dtype, weight, scale, of_tokens, where = form
    y = "|".join((dtype, *narrow.DTYPES)) if dtype == narrow.E2M1 else dtype
    outputs = f"y {y}[t, n // 2]!, y_scale {y_scale}"
    return dtype, f"{dtype}{weight}", scale, of_tokens, f"-{_MATRIX}", outputs, where + columns


_MX_RESULT = f"{narrow.SCALES}[t, ceil_div(n // 2, {narrow.PAIR}), 2]", ", n % 128 == 0"
_GATED = (
    *(_gated(form, "FLOAT[t]") for form in _narrow.BY_COLUMNS),
    *(_gated(form, *_MX_RESULT) for form in _narrow.BY_GROUPS),
)
_GATE_SIGNATURE = _gate_forms(_BY_INT8, _BY_INT4, is_v2=False)
_V2_SIGNATURE = _gate_forms(_BY_INT8, _BY_INT4, *_GATED, is_v2=True)
_READ = {
    "GroupedMatmulSwigluQuant": _grouped.grouped_by(_GATE_SIGNATURE),
    "GroupedMatmulSwigluQuantV2": _grouped.grouped_by(_V2_SIGNATURE),
}


def _gate_case(case: Case) -> Case:
    """Return the case with its inputs in the order of the first kernel."""
    inputs = case.inputs or ()
    if case.kernel_type == "GroupedMatmulSwigluQuantV2":
        inputs += (_NOTHING,) * (max(_FROM_V2) + 1 - len(inputs))
        return replace(case, inputs=tuple(inputs[i] for i in _FROM_V2))
    is_older = len(inputs) == _SWIGLU_GROUPS
    placed = (*inputs[:_ASSISTANCE], _NOTHING, *inputs[_ASSISTANCE:])
    return replace(case, inputs=placed) if is_older else case


def _gate_sizes(case: Case) -> GroupedProduct:
    """Return the sizes; the output has half of the weight's columns, which are gates and values."""
    return _READ[case.kernel_type](case)


def _gate_call(case: Case, make: TensorMaker, format: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokens, weights in a format, and the other tensors by name."""
    x, weight, weight_scale, x_scale, *_ = _gate_case(case).inputs or ()
    sizes, tokens = _gate_sizes(case), like.integers(x, make, -127, 128)
    named = {"x_scale": like.uniform_like(x_scale, make, 0.5, 1.5)}
    if _grouped.is_nibbles(_gate_case(case)):
        pairs = _grouped.nibbles(sizes, make)
        split = _grouped.split_options(pairs, weight_scale.shape or (), make)
        named |= {"weight_scale": split["scale"], "assistance": split["bias"]}
        return tokens, _grouped.packed(pairs, weight.format, make), named
    stored = make.stored(make.integers(sizes.weight, weight.dtype, -127, 128), format)
    return tokens, stored, {**named, "weight_scale": int8.scale_like(weight_scale, make)}


def _narrow_gate(case: Case, make: TensorMaker) -> Call:
    """Return the call of FLOAT8 or FLOAT4 tokens and weights, as the reference takes it."""
    places, sizes = (_X, _WEIGHT, _WEIGHT_SCALE, _X_SCALE), _gate_sizes(case)
    x, weight, scales = _narrow.experts(_gate_case(case), sizes, places, make)
    tensors = x, weight, scales["scale"], scales["per_token_scale"]
    options = narrow.numbers_of(_gate_case(case), _DTYPES)
    quant = narrow.output_type(case, make)
    return Call(*tensors, counts=sizes.counts, quant_dtype=quant, **options)


def _gate_build(case: Case, make: TensorMaker) -> Call:
    if is_narrow(case):
        return _narrow_gate(case, make)
    x, weight, named = _gate_call(case, make, "")
    counts = _gate_sizes(case).counts
    return Call(x, weight, named["weight_scale"], named["x_scale"], counts=counts)


def _gate_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with INT8 weights in FRACTAL_NZ, which the kernel assumes for any format."""
    x, weight, named = _gate_call(case, make, FRACTAL_NZ)
    if "assistance" in named:
        named["bias"] = named.pop("assistance")
    ends = group_ends(_gate_sizes(case).counts, "INT64", make)
    return Call(x, weight, group_list=ends, **named)  # by name: their order differs by library


def _narrow_gate_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call as vLLM-Ascend makes it for W8A8_MXFP8 and W4A4_MXFP4: mode 2 of both sides
    is MX, mode 0 a scale of each token and column."""
    call = _narrow_gate(case, make)
    (x, weight, weight_scale, x_scale), options = call.args, dict(call.kwargs)
    is_mx = spelling(given(_gate_case(case), _X_SCALE)) == narrow.SCALES
    if is_mx:
        options |= dict.fromkeys(("weight_scale_dtype", "x_scale_dtype"), narrow.E8M0)
    return Call(
        x=x,
        weight=[weight],
        weight_scale=[weight_scale],
        x_scale=x_scale,
        group_list=group_ends(options.pop("counts"), "INT64", make),
        dequant_mode=_MX if is_mx else _BY_TOKEN,
        quant_mode=_MX if is_mx else _BY_TOKEN,
        dequant_dtype=make.dtype("FLOAT"),
        **options,
    )


def _gate_build_v2_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with lists of one tensor, and the number of rows of each expert."""
    if is_narrow(case):
        return _narrow_gate_for_npu(case, make)
    x, weight, named = _gate_call(case, make, FRACTAL_NZ)
    options: dict[str, Any] = {}
    if "assistance" in named:
        options["weight_assist_matrix"] = [named["assistance"]]
    if named["weight_scale"].dim() == 3:
        options["dequant_mode"] = 1  # by groups of rows
    counts = make.tensor(_gate_sizes(case).counts, "INT64")
    lists = {"weight": [weight], "weight_scale": [named["weight_scale"]]}
    rest = {"x_scale": named["x_scale"], "group_list": counts, "group_list_type": 1}
    return Call(x=x, **lists, **rest, **options)


def _gate_launch(grouped: Any, *args: Any, **named: Any) -> Any:
    y, scale, *_offset = grouped(*args, **named)
    if "x_scale_dtype" in named:  # scales of MX are bytes here, like those that the call takes
        bytes_ = named["x_scale"].dtype
        scale = scale.view(bytes_)
        y = y.view(bytes_) if isinstance(named["quant_dtype"], int) else y
    return y, scale


def _gate_reference(
    torch: Any,
    x: Any,
    weight: Any,
    weight_scale: Any,
    x_scale: Any,
    *,
    counts: tuple[int, ...],
    quant_dtype: Any = None,
    x_dtype: int | None = None,
    weight_dtype: int | None = None,
) -> Any:
    used = sum(counts)
    if quant_dtype is not None:
        scales, dtypes = (weight_scale, x_scale), (x_dtype, weight_dtype)
        return _narrow_gated(torch, x, weight, scales, counts, quant_dtype, dtypes)
    is_packed = weight.dtype == torch.int32
    width = weight.shape[2] * (_grouped.COLUMNS if is_packed else 1)
    wide = x.new_empty((x.shape[0], width), dtype=torch.float32)
    places = zip(x[:used].split(counts), wide[:used].split(counts), strict=True)
    for expert, (tokens, place) in enumerate(places):
        if not counts[expert]:
            continue
        if is_packed:
            place.copy_(_grouped.multiplied(torch, tokens, weight[expert], weight_scale[expert]))
        else:
            total = int8.int8_product(torch, tokens, weight[expert])
            torch.mul(total, weight_scale[expert].float(), out=place)
    return int8.quantise_rows(torch, swiglu(torch, wide.mul_(x_scale.unsqueeze(-1))))


def _narrow_gated(
    torch: Any, x: Any, weight: Any, scales: Any, counts: Any, dtype: Any, dtypes: Any
) -> Any:
    weight_scale, x_scale = scales
    wide = x_scale.new_zeros((x.shape[0], weight.shape[2]), dtype=torch.float32)
    start = 0
    for expert, count in enumerate(counts):
        rows = slice(start, start + count)
        own = weight[expert], weight_scale[expert]
        wide[rows] = _narrow.narrow_product(torch, x[rows], *own, x_scale[rows], None, dtypes)
        start += count
    gated = swiglu(torch, wide)
    if x_scale.dim() > 1:
        return narrow.quantised(torch, gated, dtype)
    scale = gated.abs().amax(-1) / narrow.most_of(torch, dtype)
    return narrow.rounded_narrow(torch, gated / scale.unsqueeze(-1), dtype), scale


def _gate_flops(case: Case) -> int:
    sizes = _gate_sizes(case)
    return sizes.flops + _GATE_FLOPS * sizes.used * sizes.n // 2


def _gate_traffic(case: Case) -> int:
    absent = frozenset({_ASSISTANCE})
    return _grouped.grouped_traffic(_gate_case(case), _gate_sizes(case), absent)


GROUPED_MATMUL_SWIGLU_QUANT = OpSpec(
    kernel="GroupedMatmulSwigluQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_matmul_swiglu_quant",
    assumes="as many rows for each expert, unless Runtime group_list_values names them",
    signature=_GATE_SIGNATURE,
    reference=_gate_reference,
    build=_gate_build,
    flops=_gate_flops,
    traffic=_gate_traffic,
    group=group_by_weight,
    written=lambda case: _grouped.written_rows(_gate_sizes(case)),
    packed={_WEIGHT: "INT4", _WEIGHT_SCALE: "UINT64"},
    placed=_gate_case,
    npu=NpuCall(
        run=_gate_launch,
        build=_gate_build_for_npu,
        nz=frozenset({_WEIGHT}),
        served="torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz",
    ),
    constraints=(_grouped.groups_fit(_gate_sizes),),
    lookups=make_lookups(
        "tensor_cast.grouped_matmul_quant_swiglu.default",
        "tensor_cast.grouped_matmul_quant_int4_swiglu.default",
        "tensor_cast.grouped_matmul_fp8_swiglu.default",
        "tensor_cast.grouped_matmul_mxfp4_swiglu.default",
    ),
    launched_by={
        "aclnnGroupedMatmulSwigluQuantWeightNZ": arguments_at(
            weight_scale=4, x_scale=5, weight_assistance_matrix=2, group_list=6, outputs=7
        )
    },
    shown={"weight": As.INT4, "weight_scale": As.UINT64, "weight_assistance_matrix": As.LEFT_OUT},
)

# The same for tensors in lists, here of one each, with a count of rows for each expert (CANN 8.5).
GROUPED_MATMUL_SWIGLU_QUANT_V2 = replace(
    GROUPED_MATMUL_SWIGLU_QUANT,
    kernel="GroupedMatmulSwigluQuantV2",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_matmul_swiglu_quant_v2",
    signature=_V2_SIGNATURE,
    group=lambda case: group_by_weight(_gate_case(case)),
    packed={3: "INT4", 4: "UINT64"},
    narrow=frozenset((*narrow.BYTE_DTYPES, narrow.E2M1, narrow.SCALES)),
    placed=as_printed,
    npu=NpuCall(
        run=_gate_launch,
        build=_gate_build_v2_for_npu,
        nz=frozenset({3}),
        served="torch.ops._C_ascend.grouped_matmul_swiglu_quant_v2",
    ),
    constraints=(
        Constraint(
            "FRACTAL_NZ weights: expected INT8 or INT4",
            lambda case: not is_narrow(case) or (case.inputs or ())[3].format != FRACTAL_NZ,
        ),
        _grouped.groups_fit(_gate_sizes),
    ),
    lookups=make_lookups(
        "tensor_cast.grouped_matmul_quant_swiglu.default",
        "tensor_cast.grouped_matmul_quant_int4_swiglu.default",
        "tensor_cast.grouped_matmul_fp8_swiglu.default",
        "tensor_cast.grouped_matmul_mxfp4_swiglu.default",
        order=1,
    ),
    launched_by=dict.fromkeys(
        ("aclnnGroupedMatmulSwigluQuantV2", "aclnnGroupedMatmulSwigluQuantWeightNzV2"),
        arguments_at(
            x_scale=5, group_list=7, weight=1, weight_scale=2, weight_assist_matrix=3, outputs=-2
        ),
    ),
    shown={"weight": As.INT4, "weight_scale": As.UINT64},
)
