"""The first half of an expert layer: products by expert, SwiGlu, and rows quantised to INT8."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._grouped import (
    GroupedProduct,
    grouped_traffic,
    groups_fit,
    read_grouped_product,
    written_rows,
)
from collector.ops.catalog.matmul._product import group_by_weight
from collector.ops.dtypes import inputs_are, outputs_are
from collector.ops.parts.int8 import int8_product, quantise_rows
from collector.ops.parts.quant_scale import small_scale
from collector.ops.parts.shares import group_ends
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker
from collector.vocabulary import FRACTAL_NZ

_X, _WEIGHT, _WEIGHT_SCALE, _X_SCALE, _GROUPS = range(5)
_MOST_COLUMNS = 10240
_GATE_FLOPS = 8  # an element of y: 5 for SwiGlu, then a maximum, a quotient and a rounding


def _sizes(case: Case) -> GroupedProduct | None:
    """The columns of a weight are gates and values; half as many come out."""
    sizes = read_grouped_product(case, lambda n: n // 2)
    return sizes if sizes and sizes.n and not sizes.n % 2 and not sizes.transposes_weight else None


def _counts(case: Case) -> tuple[int, ...]:
    sizes = _sizes(case)
    return sizes.counts if sizes else ()


def _tensors(case: Case, make: TensorMaker, format: str) -> tuple[Any, Any, Any, Any]:
    x, weight, weight_scale, x_scale, _ = case.inputs or ()
    sizes = _sizes(case)
    shape = sizes.weight if sizes else weight.shape or ()
    return (
        make.integers(x.shape or (), x.dtype, -127, 128),
        make.stored(make.integers(shape, weight.dtype, -127, 128), format),
        small_scale(weight_scale.shape or (), weight_scale.dtype, make),
        make.uniform(x_scale.shape or (), x_scale.dtype, 0.5, 1.5),
    )


def _build(case: Case, make: TensorMaker) -> Call:
    return Call(_tensors(case, make, ""), {"counts": _counts(case)})


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    """The kernel reads any weight as FRACTAL_NZ, whatever it is called."""
    x, weight, weight_scale, x_scale = _tensors(case, make, FRACTAL_NZ)
    ends = group_ends(_counts(case), (case.inputs or ())[_GROUPS].dtype, make)
    named = {"group_list": ends, "weight_scale": weight_scale, "x_scale": x_scale}
    return Call((x, weight), named)  # whose order differs between the two libraries


def _launch(grouped: Any, *args: Any, **named: Any) -> Any:
    y, scale, _offset = grouped(*args, **named)
    return y, scale


def _reference(
    torch: Any,
    x: Any,
    weight: Any,
    weight_scale: Any,
    x_scale: Any,
    *,
    counts: tuple[int, ...],
) -> Any:
    used = sum(counts)
    wide = x.new_empty((x.shape[0], weight.shape[2]), dtype=torch.float32)
    places = zip(x[:used].split(counts), wide[:used].split(counts), strict=True)
    for expert, (tokens, place) in enumerate(places):
        if counts[expert]:
            total = int8_product(torch, tokens, weight[expert])
            torch.mul(total, weight_scale[expert].float(), out=place)
    gate, value = wide.mul_(x_scale.unsqueeze(-1)).chunk(2, -1)
    return quantise_rows(torch, torch.nn.functional.silu(gate).mul_(value))


def _flops(case: Case) -> int:
    sizes = _sizes(case)
    return sizes.flops + _GATE_FLOPS * sizes.used * sizes.n // 2 if sizes else 0


def _sizes_fit(case: Case) -> bool:
    sizes = _sizes(case)
    return (
        sizes is not None
        and sizes.n <= _MOST_COLUMNS
        and input_shape(case, _WEIGHT_SCALE) == (sizes.experts, sizes.n)
        and input_shape(case, _X_SCALE) == (sizes.tokens,)
        and input_shape(case, _GROUPS) == (sizes.experts,)
        and agrees(case, 1, (sizes.tokens,))
    )


OP = OpSpec(
    kernel="GroupedMatmulSwigluQuant",
    call="torch_npu.npu_grouped_matmul_swiglu_quant",
    assumes="as many rows for each expert, but for Runtime group_list_values",
    slots=("x", "weight", "weight_scale", "x_scale", "group_list"),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=lambda case: grouped_traffic(case, _sizes(case), frozenset()),
    group=group_by_weight,
    written=lambda case: written_rows(_sizes(case)),
    npu=NpuCall(
        run=_launch,
        build=_build_for_npu,
        nz=frozenset({_WEIGHT}),
        served="torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz",
    ),
    constraints=(
        inputs_are(("INT8",), (_X, _WEIGHT)),
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_WEIGHT_SCALE,)),
        inputs_are(("FLOAT",), (_X_SCALE,)),
        inputs_are(("INT64",), (_GROUPS,)),
        outputs_are(("INT8",), (0,)),
        outputs_are(("FLOAT",), (1,)),
        Constraint(
            "tokens (T,K) are wanted, weights (E,K,N) of an even N, and (T,N/2) out",
            lambda case: _sizes(case) is not None,
        ),
        Constraint(
            f"a weight scale (E, N up to {_MOST_COLUMNS}) is wanted, a scale of tokens (T) in and "
            "out, and a group list (E)",
            _sizes_fit,
        ),
        groups_fit(_sizes),
    ),
)
