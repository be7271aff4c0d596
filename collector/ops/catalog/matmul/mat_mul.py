"""Products whose operands and result lie in FRACTAL_NZ, though torch mostly has plain ones.

aclnn converts both operands of 16 bits, and the result back, where a kernel on plain ones would
read badly (CANN's open sources, ops-nn: `IsNdToNzOnTheFly`; A2 and A3): where a row in memory holds
more than 65,535 numbers, as logits over a large vocabulary do, or fewer than 128 that are no
multiple of 16. Small tensors stay plain, and products over a k of 1 or over a long k to few
numbers.

A row tells sizes in whole blocks alone. They are taken as they are, but for a row in memory of at
most 128 numbers where none is long: there one number is less, or CANN would convert nothing.

What it would not convert is launched by torch_npu's own linear layer, where it is one: that takes
both as they lie, in blocks, and asks for a MatMulV2.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from collector.model.case import Case, Slot, logical_shape
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops.catalog.matmul._product import (
    OUTPUT_FITS,
    Product,
    check_release,
    flops_by,
    group_by_weight,
    is_wide,
    read_single_product,
)
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import (
    Call,
    Constraint,
    GraphCall,
    NpuCall,
    OpSpec,
    TensorMaker,
    dense_bytes,
)

_BLOCK = (16, 16)  # of 16 bits
_LONG, _SHORT = 65_535, 128
_SPLIT, _FEW = 15_000, 12  # a k that is split over cores, and half of their number
_CONVERTED_A, _CONVERTED_B = range(2)


def are_in_blocks(case: Case) -> bool:
    """Whether both operands lie in blocks: one alone is a weight that the user has stored so."""
    return all(_is_nz(given(case, at)) for at in (_CONVERTED_A, _CONVERTED_B))


@dataclass(frozen=True, slots=True)
class _Rows:
    """How many numbers stand in one row in memory, and in all, of an operand."""

    inner: int
    numbers: int


def converted(case: Case) -> Product | None:
    """The product of plain operands that CANN converts to those of the case, as NT, NN, TN or TT;
    None where there is none."""
    fits = (_shortened(product) for product in _readings(case))
    return next((product for product in fits if product and _is_converted(product)), None)


def of_layer(case: Case) -> Product | None:
    """The product of a linear layer's operands as they lie, NT; None where it is none."""
    return next((product for product in _readings(case) if product.layout == "NT"), None)


def _readings(case: Case) -> Iterator[Product]:
    """The products of whole blocks that fit, in the order in which plain ones are read."""
    slots = (given(case, _CONVERTED_A), given(case, _CONVERTED_B), output_slot(case))
    if not all(map(_is_nz, slots)) or len(case.inputs or ()) > 2 or case.kernel_type == "MatMul":
        return
    (r, c), (s, t), out = (logical_shape(slot) for slot in slots if slot)
    for transposes_a, transposes_b in ((False, True), (False, False), (True, False), (True, True)):
        (m, k), (k2, n) = (c, r) if transposes_a else (r, c), (t, s) if transposes_b else (s, t)
        if k == k2 and out == (m, n):
            yield Product(m, n, k, transposes_a, transposes_b)


def _shortened(product: Product) -> Product | None:
    """The same with sizes that are no multiple of 16 where those of whole blocks would stay."""
    a, b = _rows(product)
    if max(a.inner, b.inner) > _LONG:
        return product
    if a.inner <= _SHORT:
        return _without_one(product, "m" if product.transposes_a else "k")
    if b.inner <= _SHORT:
        return _without_one(product, "k" if product.transposes_b else "n")
    return None


def _without_one(product: Product, size: str) -> Product:
    if size == "m":
        return replace(product, m=product.m - 1)
    return replace(product, n=product.n - 1) if size == "n" else replace(product, k=product.k - 1)


def _is_converted(product: Product) -> bool:
    a, b = _rows(product)
    is_small = max(a.numbers, b.numbers) <= _LONG or product.k == 1
    is_read_well = all(_is_read_well(one.inner) for one in (a, b))
    is_split = product.k >= _SPLIT and product.m // 128 * (product.n // 128) < _FEW
    return not (is_small or is_read_well or (is_split and product.layout != "NT"))


def _is_read_well(inner: int) -> bool:
    return _SHORT <= inner <= _LONG or (inner < _SHORT and inner % 16 == 0)


def _rows(product: Product) -> tuple[_Rows, _Rows]:
    m, n, k = product.m, product.n, product.k
    a = _Rows(m if product.transposes_a else k, m * k)
    b = _Rows(k if product.transposes_b else n, k * n)
    return a, b


def _is_nz(slot: Slot | None) -> bool:
    """Whether a tensor of 16 bits lies in the blocks of its dtype."""
    if slot is None or slot.format != FRACTAL_NZ or slot.known_dtype is None:
        return False
    shape = slot.shape or ()
    return slot.known_dtype.item_bits == 16 and len(shape) == 4 and shape[-2:] == _BLOCK


# Product of two matrices; the runtime chooses among three kernels, and graphs have a fourth.
#
# NT is a linear layer's forward, NN the gradient of its input, TN that of its weight: shapes that
# fit several readings are read as the first of them. Both operands in FRACTAL_NZ are plain ones
# that aclnn has converted, or those of torch_npu's own linear layer (`_converted`).

_MAT_MUL_V2_A, _MAT_MUL_V2_B, _BIAS, _OFFSET = range(4)
_OPTIONAL = frozenset({_BIAS, _OFFSET})
_LAYOUTS = ("NT", "NN", "TN", "TT")


def product_of(case: Case) -> Product | None:
    """The first reading of two matrices that fits; None where none does."""
    if are_in_blocks(case):
        return converted(case) or of_layer(case)
    return read_single_product(case, _LAYOUTS)


def _reference(
    torch: Any, a: Any, b: Any, bias: Any = None, *, out_dtype: Any = None, npu: Any = None
) -> Any:
    if npu is not None:
        return torch.mm(a, b.t())
    if out_dtype in (None, a.dtype):
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=out_dtype)
    return torch.mm(a.to(out_dtype), b.to(out_dtype))


def _launch(mm: Any, a: Any, b: Any, bias: Any = None, *, npu: Any = None, **wide: Any) -> Any:
    """A bias is the kernel's own input, and `torch.mm` has none: `addmm` is the same launch."""
    if npu is not None:  # torch_npu's operators
        return npu.npu_linear(a, b)
    return mm(a, b, **wide) if bias is None else bias.addmm(a, b)


def _in_graph(
    mm: Any, a: Any, b: Any, bias: Any = None, *, transposed: tuple[bool, bool], **wide: Any
) -> Any:
    """Transposed in the graph, which makes it a part of the product: torchair would copy a view
    that it is given."""
    return _launch(mm, *_turned((a, b), transposed), bias, **wide)


def _build_for_graph(case: Case, make: TensorMaker) -> Call:
    product, call = product_of(case), _build(case, make)
    transposed = (product.transposes_a, product.transposes_b) if product else (False, False)
    return Call(
        (*_turned(call.args[:2], transposed), *call.args[2:]),
        {**call.kwargs, "transposed": transposed},
    )


def _turned(operands: tuple[Any, ...], transposed: tuple[bool, bool]) -> tuple[Any, Any]:
    a, b = (x.t() if is_view else x for x, is_view in zip(operands, transposed, strict=True))
    return a, b


def _build(case: Case, make: TensorMaker) -> Call:
    product, (slot_a, slot_b, *_) = product_of(case), case.inputs or ()
    if product and are_in_blocks(case):
        return _build_in_blocks(product, case, make)
    a = make.normal(input_shape(case, _MAT_MUL_V2_A), slot_a.dtype)
    shape = product.weight if product else input_shape(case, _MAT_MUL_V2_B)
    b = make.stored(make.normal(shape, slot_b.dtype), slot_b.format)
    operands = (
        a.t() if product and product.transposes_a else a,
        b.t() if product and product.transposes_b else b,
    )
    bias = given(case, _BIAS)
    # A FLOAT bias of a 16-bit product is converted here, once: addmm wants one dtype.
    biases = (make.normal(bias.shape or (), bias.dtype).to(a.dtype),) if bias else ()
    wide = {"out_dtype": make.dtype("FLOAT")} if is_wide(case) else {}
    if wide and a.device.type == "npu":
        check_release(make, "aten::mm.dtype")
    return Call((*operands, *biases), wide)


def _build_in_blocks(product: Product, case: Case, make: TensorMaker) -> Call:
    slots = (case.inputs or ())[:2]
    if converted(case) is not None:
        return _build_plain(product, slots[0].dtype, make)
    sizes = ((product.m, product.k), (product.n, product.k))
    operands = [
        make.stored(make.normal(size, slot.dtype), slot.format)
        for size, slot in zip(sizes, slots, strict=True)
    ]
    return Call(tuple(operands), {"npu": make.torch.ops.npu})


def _build_plain(product: Product, dtype: str, make: TensorMaker) -> Call:
    m, n, k = product.m, product.n, product.k
    a = make.normal((k, m), dtype).t() if product.transposes_a else make.normal((m, k), dtype)
    b = make.normal((n, k), dtype).t() if product.transposes_b else make.normal((k, n), dtype)
    return Call((a, b))


def _bias_fits(case: Case) -> bool:
    product, bias = product_of(case), given(case, _BIAS)
    return not bias or (product is not None and bias.shape in ((product.n,), (1, product.n)))


def _blocks_fit(case: Case) -> bool:
    """aclnnMatmulWeightNz takes no weight of one row or column."""
    product, weight = product_of(case), given(case, _MAT_MUL_V2_B)
    is_stored = weight is not None and weight.format == FRACTAL_NZ and not are_in_blocks(case)
    return not is_stored or product is None or min(product.k, product.n) > 1


MAT_MUL_V2 = OpSpec(
    kernel="MatMulV2",
    twins=("MatMulV3", "MatMulCommon", "MatMul"),
    call="torch.mm",
    slots=("a", "b", "bias", "offset"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(product_of),
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    group=group_by_weight,
    npu=NpuCall(
        run=_launch,
        nz=frozenset({_MAT_MUL_V2_B}),
        converts=are_in_blocks,
        graph=GraphCall(
            takes=lambda case: case.kernel_type == "MatMul", run=_in_graph, build=_build_for_graph
        ),
    ),
    constraints=(
        Constraint(
            "both operands in FRACTAL_NZ want a linear layer's (NT), or sizes of which CANN "
            "converts plain ones: a row in memory of over 65,535 numbers, or of under 128 and no "
            "multiple of 16; the output is FRACTAL_NZ too",
            lambda case: not are_in_blocks(case) or product_of(case) is not None,
        ),
        Constraint(
            "two matrices are wanted that multiply to the output as NT, NN, TN or TT",
            lambda case: product_of(case) is not None,
        ),
        floating((_MAT_MUL_V2_A, _MAT_MUL_V2_B)),
        one_dtype((_MAT_MUL_V2_A, _MAT_MUL_V2_B), ()),
        OUTPUT_FITS,
        Constraint(
            "FLOAT of a product of 16 bits wants no bias",
            lambda case: not is_wide(case) or given(case, _BIAS) is None,
        ),
        Constraint("a FRACTAL_NZ weight wants more than one row and column", _blocks_fit),
        Constraint("the bias wants one number a column of the output", _bias_fits),
        Constraint("an offset cannot be replayed", lambda case: given(case, _OFFSET) is None),
    ),
)
