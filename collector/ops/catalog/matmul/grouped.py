"""One product per expert, of the tokens that were routed to it."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.model.lookup import looked_up
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops import rules
from collector.ops.catalog.matmul import _grouped, _narrow
from collector.ops.catalog.matmul._grouped import GroupedProduct
from collector.ops.catalog.matmul._product import group_by_weight
from collector.ops.parts import int8, like, narrow
from collector.ops.parts.narrow import is_narrow
from collector.ops.parts.tensors import flops_by, group_ends, swiglu
from collector.ops.slots import agrees, given, input_shape, output_slot, spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, as_printed

_X, _WEIGHT, _BIAS, _SCALE, _OFFSET = range(5)
_ANTIQUANT_SCALE, _ANTIQUANT_OFFSET, _GROUPS, _PER_TOKEN = range(5, 9)
_SLOTS = (
    *("x", "weight", "bias", "scale", "offset", "antiquant_scale", "antiquant_offset"),
    *("group_list", "per_token_scale"),
)
_OPTIONAL = frozenset(range(len(_SLOTS))) - {_X, _WEIGHT, _GROUPS}
_BY_COLUMN = (_BIAS, _SCALE, _ANTIQUANT_SCALE, _ANTIQUANT_OFFSET)
_FLOATS = {"FLOAT", "FLOAT16", "DT_BF16"}
_DTYPES = {"x_dtype": _X, "weight_dtype": _WEIGHT}


def _sizes(case: Case) -> GroupedProduct | None:
    return _grouped.read_grouped_product(case, lambda n: n)


def _build(case: Case, make: TensorMaker) -> Call:
    counts, out = rules.accepted(_sizes(case)).counts, output_slot(case)
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
    (x, weight), sizes = (case.inputs or ())[:2], rules.accepted(_sizes(case))
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
            place.copy_(_narrow.product(torch, *sides, None, dtypes))
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
        weight = _grouped.dequantised(torch, weight, antiquant_scale, antiquant_offset)
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
        weight_only = weight in ("INT8", "INT4") and antiquant == x and x != "FLOAT"
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
        is_packed = scale in int8.PACKED and out in ("DT_BF16", "FLOAT16")
        return is_plain and is_packed and (bias, per_token) == ("FLOAT", "FLOAT")
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
    by_column = (given(case, i) for i in _BY_COLUMN if i == _BIAS or not _grouped.is_nibbles(case))
    per_token = given(case, _PER_TOKEN)
    return (
        groups.shape == (sizes.experts,)
        and all(slot is None or slot.shape == (sizes.experts, sizes.n) for slot in by_column)
        and (per_token is None or per_token.shape == (sizes.tokens,))
    )


def _nibbles_fit(case: Case) -> bool:
    """Return whether the kernel takes INT4 weights of these sizes with these scales."""
    sizes = rules.accepted(_sizes(case))
    if not _is_split(case):
        scale, offset = (input_shape(case, i) for i in (_ANTIQUANT_SCALE, _ANTIQUANT_OFFSET))
        is_given = given(case, _ANTIQUANT_OFFSET) is not None
        return _grouped.are_nibbles(sizes, scale) and (not is_given or offset == scale)
    return _grouped.are_split_nibbles(sizes, input_shape(case, _SCALE))


def _blocks_fit(case: Case) -> bool:
    """Return whether aclnnGroupedMatmulWeightNz takes the weights in blocks."""
    is_stored = (case.inputs or ())[_WEIGHT].format == FRACTAL_NZ
    x, out = spelling(given(case, _X)), spelling(output_slot(case))
    is_only_weight = _grouped.is_nibbles(case) and not _is_split(case)
    return not is_stored or not (x == "FLOAT" or out == "INT8" or is_only_weight)


def _narrow_fits(case: Case) -> bool:
    places = (_X, _WEIGHT, _SCALE, _PER_TOKEN)
    sizes, groups = rules.accepted(_sizes(case)), given(case, _GROUPS)
    is_listed = spelling(groups) == "INT64" and input_shape(case, _GROUPS) == (sizes.experts,)
    return is_listed and output_slot(case) is not None and _narrow.experts_fit(case, sizes, places)


# One product per expert, of the tokens that were routed to it.
GROUPED_MATMUL = OpSpec(
    kernel="GroupedMatmul",
    is_shown_otherwise=True,
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
    narrow=frozenset((*narrow.BYTE_DTYPES, narrow.E2M1, narrow.SCALES)),
    npu=NpuCall(run=_launch, build=_build_for_npu, nz=frozenset({_WEIGHT})),
    constraints=(
        rules.reads(
            "expected tokens (T,K), weights (E,K,N) or (E,N,K), blocks (E,N,K,rows,columns) in "
            "FRACTAL_NZ, and an output (T,N)",
            _sizes,
        ),
        rules.absent("an offset cannot be replayed", _OFFSET),
        *rules.unless(
            is_narrow,
            Constraint(
                "the dtypes of x, weight, bias, scales and output do not go together: expected a "
                "combination that npu_grouped_matmul documents",
                _dtypes_are_legal,
            ),
            Constraint(
                "INT4 weights: expected (E,K,N) with N as a multiple of 8; with INT8 tokens K of "
                "at most 18432 and scales (E,N), (E,1,N) or, for each 256 rows, (E,K/256,N); "
                "otherwise antiquant scale and offset (E,N) or (E,G,N) for G equal groups of rows",
                lambda case: not _grouped.is_nibbles(case) or _nibbles_fit(case),
            ),
            Constraint(
                "FRACTAL_NZ weights: expected another dtype than FLOAT, an output other than INT8, "
                "and INT8 tokens with INT4 weights",
                _blocks_fit,
            ),
            Constraint(
                "expected a group list (E INT64), bias and scales (E,N), and a scale of tokens (T)",
                _options_fit,
            ),
        ),
        *rules.unless(
            lambda case: not is_narrow(case),
            rules.absent(
                "a bias and antiquant scales are not replayed for FLOAT8, HIFLOAT8 and FLOAT4",
                *(_BIAS, _ANTIQUANT_SCALE, _ANTIQUANT_OFFSET),
            ),
            rules.outputs_are(tuple(sorted(_FLOATS)), (0,)),
            Constraint(
                "expected a group list (E INT64); FLOAT8 or HIFLOAT8 weights (E,K,N) or (E,N,K) "
                "with FLOAT scales (E,N) and (T), or of blocks of 128 by 128 and 128 neighbours; "
                "or FLOAT8, or FLOAT4_E2M1 for tokens and weights (E,N,K) with an even number of "
                "groups of 32, with FLOAT8_E8M0 scales (E, K / 64, N, 2) or (E, N, K / 64, 2) and "
                "(T, K / 64, 2)",
                _narrow_fits,
            ),
        ),
        _grouped.groups_fit(_sizes),
    ),
    lookups=looked_up(
        "tensor_cast.grouped_matmul.default",
        "tensor_cast.grouped_matmul_quant.default",
        "tensor_cast.grouped_matmul_quant_int4.default",
        "tensor_cast.grouped_matmul_fp8.default",
        "tensor_cast.grouped_matmul_mxfp4.default",
        "tensor_cast.grouped_matmul_swiglu.default",
    ),
)


# The first half of an expert layer, in two kernels that differ in the order of their inputs. All
# functions here read the order of the first one; older releases of it have no assistance matrix.
_WEIGHT_SCALE, _X_SCALE, _ASSISTANCE, _SWIGLU_GROUPS = range(2, 6)
_GATE_SLOTS = ("x", "weight", "weight_scale", "x_scale", "weight_assistance_matrix", "group_list")
_V2_SLOTS = (
    *("x", "x_scale", "group_list", "weight", "weight_scale", "weight_assist_matrix"),
    *("bias", "smooth_scale"),
)
_FROM_V2 = (0, 3, 4, 1, 5, 2)
_NOTHING = Slot(None, "", "")
_MOST_COLUMNS = 10240
_MOST_NIBBLE_ROWS = 19999
_BY_TOKEN, _MX, _MX_COLUMNS = 0, 2, 128
_GATE_FLOPS = 8  # per element of y: 5 for SwiGlu, then a maximum, a quotient and a rounding


def _gate_case(case: Case) -> Case:
    """Return the case with its inputs in the order of `_GATE_SLOTS`."""
    inputs = case.inputs or ()
    if case.kernel_type == "GroupedMatmulSwigluQuantV2":
        inputs += (_NOTHING,) * (len(_V2_SLOTS) - len(inputs))
        return replace(case, inputs=tuple(inputs[i] for i in _FROM_V2))
    is_older = len(inputs) == len(_GATE_SLOTS) - 1
    placed = (*inputs[:_ASSISTANCE], _NOTHING, *inputs[_ASSISTANCE:])
    return replace(case, inputs=placed) if is_older else case


def _gate_sizes(case: Case) -> GroupedProduct | None:
    """Return the sizes; the output has half of the weight's columns, which are gates and values."""
    sizes = _grouped.read_grouped_product(_gate_case(case), lambda n: n // 2)
    if sizes is None or not sizes.n or sizes.n % 2:
        return None
    return sizes if is_narrow(case) or not sizes.transposes_weight else None


def _gate_call(case: Case, make: TensorMaker, format: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return tokens, weights in a format, and the other tensors by name."""
    x, weight, weight_scale, x_scale, *_ = _gate_case(case).inputs or ()
    sizes, tokens = rules.accepted(_gate_sizes(case)), like.integers(x, make, -127, 128)
    named = {"x_scale": like.uniform(x_scale, make, 0.5, 1.5)}
    if _grouped.is_nibbles(_gate_case(case)):
        pairs = _grouped.nibbles(sizes, make)
        split = _grouped.split_options(pairs, weight_scale.shape or (), make)
        named |= {"weight_scale": split["scale"], "assistance": split["bias"]}
        return tokens, _grouped.packed(pairs, weight.format, make), named
    stored = make.stored(make.integers(sizes.weight, weight.dtype, -127, 128), format)
    return tokens, stored, {**named, "weight_scale": int8.scale_like(weight_scale, make)}


def _narrow_gate(case: Case, make: TensorMaker) -> Call:
    """Return the call of FLOAT8 or FLOAT4 tokens and weights, as the reference takes it."""
    places, sizes = (_X, _WEIGHT, _WEIGHT_SCALE, _X_SCALE), rules.accepted(_gate_sizes(case))
    x, weight, scales = _narrow.experts(_gate_case(case), sizes, places, make)
    tensors = x, weight, scales["scale"], scales["per_token_scale"]
    options = narrow.numbers_of(_gate_case(case), _DTYPES)
    quant = narrow.output_type(case, make)
    return Call(*tensors, counts=sizes.counts, quant_dtype=quant, **options)


def _gate_build(case: Case, make: TensorMaker) -> Call:
    if is_narrow(case):
        return _narrow_gate(case, make)
    x, weight, named = _gate_call(case, make, "")
    counts = rules.accepted(_gate_sizes(case)).counts
    return Call(x, weight, named["weight_scale"], named["x_scale"], counts=counts)


def _gate_build_for_npu(case: Case, make: TensorMaker) -> Call:
    """Build the call with INT8 weights in FRACTAL_NZ, which the kernel assumes for any format."""
    x, weight, named = _gate_call(case, make, FRACTAL_NZ)
    if "assistance" in named:
        named["bias"] = named.pop("assistance")
    ends = group_ends(rules.accepted(_gate_sizes(case)).counts, "INT64", make)
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
    counts = make.tensor(rules.accepted(_gate_sizes(case)).counts, "INT64")
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
        wide[rows] = _narrow.product(torch, x[rows], *own, x_scale[rows], None, dtypes)
        start += count
    gated = swiglu(torch, wide)
    if x_scale.dim() > 1:
        return narrow.quantised(torch, gated, dtype)
    scale = gated.abs().amax(-1) / narrow.most_of(torch, dtype)
    return narrow.rounded(torch, gated / scale.unsqueeze(-1), dtype), scale


# The dtypes to which results are quantised, by that of the tokens.
_GATED = MappingProxyType(
    {
        **dict.fromkeys(narrow.DTYPES, narrow.DTYPES),
        narrow.HIF8: (narrow.HIF8,),
        narrow.E2M1: (narrow.E2M1, *narrow.DTYPES),
    }
)


def _narrow_gate_fits(case: Case) -> bool:
    places, placed = (_X, _WEIGHT, _WEIGHT_SCALE, _X_SCALE), _gate_case(case)
    sizes, groups = rules.accepted(_gate_sizes(case)), given(placed, _SWIGLU_GROUPS)
    scale = spelling(given(placed, _X_SCALE))
    of_output: Shape = (sizes.tokens,)
    if scale == narrow.SCALES:
        of_output = (sizes.tokens, narrow.pairs(sizes.n // 2), 2)
        is_whole = sizes.n % _MX_COLUMNS == 0
    else:
        is_whole = input_shape(placed, _X_SCALE) == of_output
    return (
        _narrow.experts_fit(placed, sizes, places)
        and is_whole
        and spelling(output_slot(case)) in _GATED[spelling(given(case, _X))]
        and spelling(output_slot(case, 1)) in ("", scale)
        and given(placed, _ASSISTANCE) is None
        and spelling(groups) == "INT64"
        and input_shape(placed, _SWIGLU_GROUPS) == (sizes.experts,)
        and agrees(case, 1, of_output)
    )


def _gate_flops(case: Case) -> int:
    sizes = rules.accepted(_gate_sizes(case))
    return sizes.flops + _GATE_FLOPS * sizes.used * sizes.n // 2


def _gate_traffic(case: Case) -> int:
    absent = frozenset({_ASSISTANCE})
    return _grouped.grouped_traffic(_gate_case(case), rules.accepted(_gate_sizes(case)), absent)


def _gate_dtypes_fit(case: Case) -> bool:
    slots = (given(_gate_case(case), i) for i in range(len(_GATE_SLOTS)))
    x, weight, weight_scale, x_scale, assistance, groups = map(spelling, slots)
    if (x, x_scale, groups) != ("INT8", "FLOAT", "INT64"):
        return False
    if weight == "INT4":
        return weight_scale in int8.PACKED and assistance == "FLOAT"
    return weight == "INT8" and weight_scale in _FLOATS and not assistance


def _gate_fits(case: Case) -> bool:
    sizes, placed = rules.accepted(_gate_sizes(case)), _gate_case(case)
    scale, columns = input_shape(placed, _WEIGHT_SCALE), (sizes.experts, sizes.n)
    if _grouped.is_nibbles(placed):
        is_scale = sizes.k <= _MOST_NIBBLE_ROWS and _grouped.are_nibbles(sizes, scale)
        is_scale = is_scale and input_shape(placed, _ASSISTANCE) == columns
    else:
        is_scale = scale == columns
    return (
        is_scale
        and sizes.n <= _MOST_COLUMNS
        and input_shape(placed, _X_SCALE) == (sizes.tokens,)
        and input_shape(placed, _SWIGLU_GROUPS) == (sizes.experts,)
        and agrees(case, 1, (sizes.tokens,))
    )


_SIZES_OF_GATE = rules.reads(
    "expected tokens (T,K), weights (E,K,N) with an even N, and an output (T,N/2)", _gate_sizes
)
_GATE_RULES = (
    rules.outputs_are(("INT8",), (0,)),
    rules.outputs_are(("FLOAT",), (1,)),
    Constraint(
        "expected INT8 tokens, FLOAT scales of tokens, an INT64 group list, and INT8 weights with "
        "FLOAT, FLOAT16 or BF16 scales, or INT4 weights with UINT64 scales and a FLOAT matrix",
        _gate_dtypes_fit,
    ),
    _SIZES_OF_GATE,
    Constraint(
        f"expected a weight scale (E, N up to {_MOST_COLUMNS}), a scale of tokens (T) for input "
        "and output, and a group list (E); for INT4 weights N as a multiple of 8, K of at most "
        f"{_MOST_NIBBLE_ROWS}, a matrix (E,N), and scales (E,N) or (E,G,N)",
        _gate_fits,
    ),
    _grouped.groups_fit(_gate_sizes),
)
_NARROW_GATE_RULES = (
    rules.reads("expected outputs: their dtype is unknown", output_slot),
    rules.outputs_are((*narrow.BYTE_DTYPES, narrow.E2M1), (0,)),
    rules.outputs_are((narrow.SCALES, "FLOAT"), (1,)),
    _SIZES_OF_GATE,
    Constraint(
        "expected a group list (E INT64); FLOAT8 or HIFLOAT8 weights (E,K,N) or (E,N,K) with FLOAT "
        "scales (E,N), (T) of tokens and (T) of the output; or FLOAT8 weights, or FLOAT4_E2M1 for "
        "tokens and weights (E,N,K) with an even number of groups of 32, with N as a multiple of "
        "128, FLOAT8_E8M0 scales (E, K / 64, N, 2) or (E, N, K / 64, 2), (T, K / 64, 2) of tokens "
        "and (T, N / 128, 2) of the output; and an output like the tokens, or FLOAT8 of FLOAT4",
        _narrow_gate_fits,
    ),
    _grouped.groups_fit(_gate_sizes),
)

GROUPED_MATMUL_SWIGLU_QUANT = OpSpec(
    kernel="GroupedMatmulSwigluQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_matmul_swiglu_quant",
    assumes="as many rows for each expert, unless Runtime group_list_values names them",
    slots=_GATE_SLOTS,
    optional=frozenset({_ASSISTANCE, _SWIGLU_GROUPS}),
    reference=_gate_reference,
    build=_gate_build,
    flops=_gate_flops,
    traffic=_gate_traffic,
    group=group_by_weight,
    written=lambda case: _grouped.written_rows(rules.accepted(_gate_sizes(case))),
    packed={_WEIGHT: "INT4", _WEIGHT_SCALE: "UINT64"},
    placed=_gate_case,
    npu=NpuCall(
        run=_gate_launch,
        build=_gate_build_for_npu,
        nz=frozenset({_WEIGHT}),
        served="torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz",
    ),
    constraints=_GATE_RULES,
    lookups=looked_up(
        "tensor_cast.grouped_matmul_quant_swiglu.default",
        "tensor_cast.grouped_matmul_quant_int4_swiglu.default",
        "tensor_cast.grouped_matmul_fp8_swiglu.default",
        "tensor_cast.grouped_matmul_mxfp4_swiglu.default",
    ),
)

# The same for tensors in lists, here of one each, with a count of rows for each expert (CANN 8.5).
GROUPED_MATMUL_SWIGLU_QUANT_V2 = replace(
    GROUPED_MATMUL_SWIGLU_QUANT,
    kernel="GroupedMatmulSwigluQuantV2",
    is_shown_otherwise=True,
    call="torch_npu.npu_grouped_matmul_swiglu_quant_v2",
    slots=_V2_SLOTS,
    optional=frozenset({5, 6, 7}),
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
        rules.absent_inputs(frozenset({6, 7}), "a bias and smoothing scales"),
        *rules.unless(is_narrow, *_GATE_RULES),
        *rules.unless(lambda case: not is_narrow(case), *_NARROW_GATE_RULES),
    ),
    lookups=looked_up(
        "tensor_cast.grouped_matmul_quant_swiglu.default",
        "tensor_cast.grouped_matmul_quant_int4_swiglu.default",
        "tensor_cast.grouped_matmul_fp8_swiglu.default",
        "tensor_cast.grouped_matmul_mxfp4_swiglu.default",
        order=1,
    ),
)
