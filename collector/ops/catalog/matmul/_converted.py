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

from collector.case import Case, Slot, logical_shape
from collector.ops.catalog.matmul._product import Product
from collector.ops.slots import given, output_slot
from collector.vocabulary import FRACTAL_NZ

_BLOCK = (16, 16)  # of 16 bits
_LONG, _SHORT = 65_535, 128
_SPLIT, _FEW = 15_000, 12  # a k that is split over cores, and half of their number
_A, _B = range(2)


def are_in_blocks(case: Case) -> bool:
    """Whether both operands lie in blocks: one alone is a weight that the user has stored so."""
    return all(_is_nz(given(case, at)) for at in (_A, _B))


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
    slots = (given(case, _A), given(case, _B), output_slot(case))
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
