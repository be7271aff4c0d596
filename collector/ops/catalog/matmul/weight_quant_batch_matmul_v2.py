"""A product with an INT8 weight, whose columns are given back as numbers on the way."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._product import (
    Product,
    flops_by,
    group_by_weight,
    read_weight_product,
)
from collector.ops.dtypes import spelling
from collector.ops.parts.int8 import restored
from collector.ops.parts.quant_scale import small_scale
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_X, _WEIGHT, _SCALE, _OFFSET, _QUANT_SCALE, _QUANT_OFFSET, _BIAS = range(7)
_LARGEST = 65535
_OPTIONAL = frozenset({_OFFSET, _QUANT_SCALE, _QUANT_OFFSET, _BIAS})


def _build(case: Case, make: TensorMaker) -> Call:
    product, (x, weight, scale, *_) = read_weight_product(case), case.inputs or ()
    stored = make.integers(weight.shape or (), weight.dtype, -127, 128)
    options = {
        name: make.normal(slot.shape or (), slot.dtype)
        for name, i in (("antiquant_offset", _OFFSET), ("bias", _BIAS))
        if (slot := given(case, i))
    }
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            stored.t() if product and product.transposes_b else stored,
            small_scale(scale.shape or (), scale.dtype, make),
        ),
        options,
    )


def _reference(
    torch: Any, x: Any, weight: Any, scale: Any, *, antiquant_offset: Any = None, bias: Any = None
) -> Any:
    product = torch.mm(x, restored(weight, scale, antiquant_offset))
    return product if bias is None else product.add_(bias)


def _dtypes_fit(case: Case) -> bool:
    x, weight, scale, offset, _, _, bias = (spelling(given(case, i)) for i in range(7))
    return (
        x in ("FLOAT16", "DT_BF16")
        and (weight, scale) == ("INT8", x)
        and offset in ("", x)
        and bias in ("", "FLOAT16" if x == "FLOAT16" else "FLOAT")
        and spelling(output_slot(case)) in ("", x)
    )


def _is_legal(product: Product) -> bool:
    return min(product.m, product.k, product.n) > 0 and max(product.k, product.n) <= _LARGEST


def _sizes_fit(case: Case) -> bool:
    product, scale, offset = (
        read_weight_product(case),
        input_shape(case, _SCALE),
        given(case, _OFFSET),
    )
    if product is None or not scale or not _is_legal(product):
        return False
    columns, bias = ((product.n,), (1, product.n)), given(case, _BIAS)
    return (
        scale in ((1,), (1, 1), *columns)
        and (offset is None or offset.shape == scale)
        and (bias is None or bias.shape in columns)
    )


OP = OpSpec(
    kernel="WeightQuantBatchMatmulV2",
    call="torch_npu.npu_weight_quant_batchmatmul",
    slots=(
        *("x", "weight", "antiquant_scale", "antiquant_offset", "quant_scale", "quant_offset"),
        "bias",
    ),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(read_weight_product),
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    group=group_by_weight,
    constraints=(
        Constraint(
            "(M,K) is wanted, a weight (K,N) or (N,K), and (M,N) out",
            lambda case: read_weight_product(case) is not None,
        ),
        Constraint(
            "FLOAT16 or BF16 is wanted for x, scale, offset and output, INT8 for the weight, and "
            "for a bias FLOAT16 beside FLOAT16 and FLOAT beside BF16",
            _dtypes_fit,
        ),
        Constraint(
            "one number a column is wanted for scale, offset and bias, or one in all; K and N want "
            "to be at most 65535",
            _sizes_fit,
        ),
        Constraint(
            "a quantised output cannot be replayed",
            lambda case: given(case, _QUANT_SCALE) is None and given(case, _QUANT_OFFSET) is None,
        ),
    ),
)
