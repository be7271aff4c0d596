"""Products of two matrices, among them products with operands and result in FRACTAL_NZ.

torch mostly has plain tensors. aclnn converts both operands of 16 bits, and the result back, if a
kernel would read plain ones badly (CANN's open sources, ops-nn: `IsNdToNzOnTheFly`; A2 and A3): if
a row in memory has more than 65,535 numbers, as for logits over a large vocabulary, or fewer than
128 that are not a multiple of 16. Small tensors stay plain, and so do products over a k of 1, or
over a long k to few numbers.

A row has only sizes in whole blocks. They are used unchanged, except if no row in memory is long
and one has at most 128 numbers: this size is reduced by one, or CANN would convert nothing.

Operands that CANN would not convert are launched by torch_npu's own linear layer, if they are one:
it takes both in blocks, as they are, and calls a MatMulV2.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from collector.model.case import Case, Slot, logical_shape
from collector.model.lookup import ONE_SIZE, make_lookups
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops import rules
from collector.ops.catalog.matmul import _product
from collector.ops.catalog.matmul._product import Product
from collector.ops.launching import As, arguments_at, calls
from collector.ops.parts import like
from collector.ops.parts.tensors import flops_by
from collector.ops.slots import given, input_shape, output_slot
from collector.ops.spec import Call, Constraint, GraphCall, NpuCall, OpSpec, TensorMaker

_BLOCK = (16, 16)  # for 16 bits
_LONG, _SHORT = 65_535, 128
_SPLIT, _FEW = 15_000, 12  # a k that is split over cores, and half of their number
_CONVERTED_A, _CONVERTED_B = range(2)


def are_in_blocks(case: Case) -> bool:
    """Return whether both operands are in blocks: one alone is a weight that the user stored."""
    return all(_is_nz(given(case, at)) for at in (_CONVERTED_A, _CONVERTED_B))


def plain_product(case: Case) -> Product | None:
    """Return the product of plain operands that CANN converts to those of the case, or None.

    The layouts are NT, NN, TN or TT."""
    fits = (_shortened(product) for product in _readings(case))
    return next((product for product in fits if product and _is_converted(product)), None)


def of_layer(case: Case) -> Product | None:
    """Return the product of a linear layer's operands in their stored layout, NT, or None."""
    return next((product for product in _readings(case) if product.layout == "NT"), None)


def _readings(case: Case) -> Iterator[Product]:
    """Yield the products of whole blocks that fit, in the order in which plain ones are read."""
    slots = (given(case, _CONVERTED_A), given(case, _CONVERTED_B), output_slot(case))
    if not all(map(_is_nz, slots)) or len(case.inputs or ()) > 2 or case.kernel_type == "MatMul":
        return
    (r, c), (s, t), out = (logical_shape(slot) for slot in slots if slot)
    for transposes_a, transposes_b in ((False, True), (False, False), (True, False), (True, True)):
        (m, k), (k2, n) = (c, r) if transposes_a else (r, c), (t, s) if transposes_b else (s, t)
        if k == k2 and out == (m, n):
            yield Product(m, n, k, transposes_a, transposes_b)


def _shortened(product: Product) -> Product | None:
    """Return the product with one size reduced by 1, if that of whole blocks would stay plain."""
    a, b = _inner(product)
    if max(a, b) > _LONG:
        return product
    if a <= _SHORT:
        return _without_one(product, "m" if product.transposes_a else "k")
    return _without_one(product, "k" if product.transposes_b else "n") if b <= _SHORT else None


def _without_one(product: Product, size: str) -> Product:
    shorter: dict[str, Any] = {size: getattr(product, size) - 1}
    return replace(product, **shorter)


def _is_converted(product: Product) -> bool:
    m, n, k = product.m, product.n, product.k
    is_small = max(m * k, k * n) <= _LONG or k == 1
    is_read_well = all(map(_is_read_well, _inner(product)))
    is_split = k >= _SPLIT and m // 128 * (n // 128) < _FEW
    return not (is_small or is_read_well or (is_split and product.layout != "NT"))


def _is_read_well(inner: int) -> bool:
    return _SHORT <= inner <= _LONG or (inner < _SHORT and inner % 16 == 0)


def _inner(product: Product) -> tuple[int, int]:
    """Return the numbers in one row in memory of each operand."""
    a = product.m if product.transposes_a else product.k
    return a, product.k if product.transposes_b else product.n


def _is_nz(slot: Slot | None) -> bool:
    if slot is None or slot.format != FRACTAL_NZ or slot.known_dtype is None:
        return False
    shape = slot.shape or ()
    return slot.known_dtype.item_bits == 16 and len(shape) == 4 and shape[-2:] == _BLOCK


_A, _B, _BIAS = range(3)
_LAYOUTS = ("NT", "NN", "TN", "TT")


def product_of(case: Case) -> Product | None:
    """Return the first reading of two matrices that fits, or None."""
    if are_in_blocks(case):
        return plain_product(case) or of_layer(case)
    return _product.read_single_product(case, _LAYOUTS)


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
    """Launch the product, with a bias by `addmm`: it is the kernel's own input.

    `torch.mm` has no bias; `addmm` launches the same kernel."""
    if npu is not None:  # torch_npu's operators
        return npu.npu_linear(a, b)
    return mm(a, b, **wide) if bias is None else bias.addmm(a, b)


def _in_graph(
    mm: Any, a: Any, b: Any, bias: Any = None, *, transposed: tuple[bool, bool], **wide: Any
) -> Any:
    """Transpose in the graph, so that the product includes the transpose.

    torchair would copy a view that it gets as input."""
    return _launch(mm, *_product.turned(a, b, *transposed), bias, **wide)


def _build_for_graph(case: Case, make: TensorMaker) -> Call:
    product, call = rules.accepted(product_of(case)), _build(case, make)
    a, b, *bias = call.args
    transposed = (product.transposes_a, product.transposes_b)
    return Call(*product.turned(a, b), *bias, **call.kwargs, transposed=transposed)


def _build(case: Case, make: TensorMaker) -> Call:
    product, (slot_a, slot_b, *_) = rules.accepted(product_of(case)), case.inputs or ()
    if are_in_blocks(case):
        return _build_in_blocks(product, case, make)
    a = make.normal(input_shape(case, _A), slot_a.dtype)
    b = make.stored(make.normal(product.weight, slot_b.dtype), slot_b.format)
    bias = given(case, _BIAS)
    # A FLOAT bias of a 16-bit product is converted here, once: addmm requires one dtype.
    biases = (like.normal(bias, make).to(a.dtype),) if bias else ()
    wide = _product.wide_output(case, make, a, "aten::mm.dtype")
    return Call(*product.turned(a, b), *biases, **wide)


def _build_in_blocks(product: Product, case: Case, make: TensorMaker) -> Call:
    slots = (case.inputs or ())[:2]
    if plain_product(case) is None:
        sizes = ((product.m, product.k), (product.n, product.k))
        a, b = (
            make.stored(make.normal(size, slot.dtype), slot.format)
            for size, slot in zip(sizes, slots, strict=True)
        )
        return Call(a, b, npu=make.torch.ops.npu)
    m, k, dtype = product.m, product.k, slots[0].dtype
    a = make.normal((k, m) if product.transposes_a else (m, k), dtype)
    return Call(*product.turned(a, make.normal(product.weight, dtype)))


def _blocks_fit(case: Case) -> bool:
    """Return whether the weight has several rows and columns, as aclnnMatmulWeightNz requires."""
    weight = given(case, _B)
    if weight is None or weight.format != FRACTAL_NZ or are_in_blocks(case):
        return True
    product = rules.accepted(product_of(case))
    return min(product.k, product.n) > 1


# Product of two matrices; the runtime chooses among three kernels, and graphs have a fourth.
#
# NT is a linear layer's forward, NN the gradient of its input, TN that of its weight: shapes that
# fit several readings are read as the first of them. If both operands are in FRACTAL_NZ, they are
# plain ones that aclnn has converted, or those of torch_npu's own linear layer (`plain_product`).
MAT_MUL_V2 = OpSpec(
    kernel="MatMulV2",
    twins=("MatMulV3", "MatMulCommon", "MatMul"),
    call="torch.mm",
    signature="a T:floating[m, k], b T[<n, k>], bias[n]|[1, n]?, -offset -> y[m, n];"
    "a T:floating[k, m], b T[<k, n>], bias[n]|[1, n]?, -offset -> y[m, n]",
    reference=_reference,
    build=_build,
    flops=flops_by(product_of),
    group=_product.group_by_weight,
    npu=NpuCall(
        run=_launch,
        nz=frozenset({_B}),
        converts=are_in_blocks,
        graph=GraphCall(
            takes=lambda case: case.kernel_type == "MatMul", run=_in_graph, build=_build_for_graph
        ),
    ),
    constraints=(
        Constraint(
            "both operands in FRACTAL_NZ: expected a linear layer's (NT), or sizes for which CANN "
            "converts plain ones: a row in memory of over 65,535 numbers, or of under 128 and not "
            "a multiple of 16; the output is FRACTAL_NZ too",
            lambda case: not are_in_blocks(case) or product_of(case) is not None,
        ),
        _product.OUTPUT_FITS,
        Constraint(
            "FLOAT output of a 16-bit product: expected no bias",
            lambda case: not _product.is_wide(case) or given(case, _BIAS) is None,
        ),
        Constraint("expected more than one row and column in a FRACTAL_NZ weight", _blocks_fit),
    ),
    lookups=(
        *make_lookups("aten.mm.default", "aten.addmm.default", interpolation=ONE_SIZE),
        *make_lookups("tensor_cast.matmul_all_reduce.default", collective="all_reduce"),
    ),
    launched_by={
        **calls("aclnnMm", "aclnnMatmulWeightNz"),
        **dict.fromkeys(
            ("aclnnAddmm", "aclnnAddmmWeightNz"), arguments_at(bias=0, a=1, b=2, outputs=5)
        ),
    },
    shown={"a": As.STORED_ROWS, "b": As.STORED, "bias": "FLOAT", "y": As.ROWS},
)
