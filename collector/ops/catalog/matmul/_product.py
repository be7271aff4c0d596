"""Detection of the transposed operands of a matrix product from its shapes.

A row has the shapes of the tensors in memory. The kernel may read either of them transposed, and
only the output shows which. If shapes fit several readings (a square operand), the first one in the
operator's order is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from collector.codec.errors import CaseRejected
from collector.model.case import Case, Shape
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops.parts.narrow import is_paired
from collector.ops.signature import parse_signature
from collector.ops.slots import broadcast, given, input_shape, output_shape, output_slot, spelling
from collector.ops.spec import Constraint, TensorMaker


@dataclass(frozen=True, slots=True)
class Product:
    """(.., m, k) @ (.., k, n), and which operand is transposed in memory."""

    m: int
    n: int
    k: int
    transposes_a: bool
    transposes_b: bool
    batch: Shape = ()

    @property
    def layout(self) -> str:
        """Return `NN`, `NT`, `TN` or `TT`."""
        return ("T" if self.transposes_a else "N") + ("T" if self.transposes_b else "N")

    @property
    def shape(self) -> Shape:
        """Return the shape of the output."""
        return (*self.batch, self.m, self.n)

    @property
    def weight(self) -> Shape:
        """Return the shape of one matrix of the second operand in memory, without padding."""
        return (self.n, self.k) if self.transposes_b else (self.k, self.n)

    @property
    def flops(self) -> int:
        """Return the operations: a product and a sum for each pair of multiplied numbers."""
        return 2 * prod(self.shape) * self.k

    def turned(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return views of the operands in memory, transposed as the product reads them."""
        return turned(a, b, self.transposes_a, self.transposes_b)


def turned(a: Any, b: Any, transposes_a: bool, transposes_b: bool) -> tuple[Any, Any]:
    """Return the operands, transposed as these tell."""
    return a.transpose(-2, -1) if transposes_a else a, b.transpose(-2, -1) if transposes_b else b


def read_product(case: Case, layouts: Sequence[str]) -> Product | None:
    """Return the product of inputs 1 and 2: the first of these layouts that fits, or None.

    Both inputs must have the same number of dimensions; those before the last two are a batch."""
    a, b, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    batch = broadcast(a[:-2], b[:-2])
    pads = _blocks(case)
    if len(a) < 2 or len(a) != len(b) or batch is None or pads is None:
        return None
    fits = (_read(a, b, out, layout, batch, pads) for layout in layouts)
    return next((product for product in fits if product is not None), None)


def read_single_product(case: Case, layouts: Sequence[str]) -> Product | None:
    """Return the product of two matrices, read in the same way; None if there is a batch."""
    product = read_product(case, layouts)
    return product if product and not product.batch else None


def product_by(signature: str) -> Callable[[Case], Product]:
    """Return a function that reads the product of a matrix and a weight (N,K) or (K,N) by the
    signature of its operator. FLOAT4 are (N,K) only."""
    read = parse_signature(signature)

    def product(case: Case) -> Product:
        sizes = read.sizes(case)
        transposed = sizes.get("transposed", is_paired(given(case, 1)))
        return Product(sizes["m"], sizes["n"], sizes["k"], False, bool(transposed))

    return product


def group_by_weight(case: Case) -> str:
    """Return a key of the cases that share one weight, the second input, and its setup."""
    slots = ";".join(f"{s.shape}{s.dtype}{s.format}" for s in (case.inputs or ())[1:2])
    return f"{case.kernel_type}|{slots}"


def _read(
    a: Shape, b: Shape, out: Shape | None, layout: str, batch: Shape, pads: tuple[int, int]
) -> Product | None:
    m, k = a[-2:] if layout[0] == "N" else a[:-3:-1]
    stored_k, stored_n = b[-2:] if layout[1] == "N" else b[:-3:-1]
    pad_k, pad_n = pads if layout[1] == "N" else pads[::-1]
    n = out[-1] if out else stored_n
    if not (0 <= stored_k - k < pad_k and 0 <= stored_n - n < pad_n):
        return None
    product = Product(m, n, k, layout[0] == "T", layout[1] == "T", batch)
    return product if out is None or out == product.shape else None


def _blocks(case: Case) -> tuple[int, int] | None:
    """Return the multiples of rows and columns to which FRACTAL_NZ pads the second operand.

    These are 16, and the number of elements in 32 bytes. (1, 1) without padding; None for other
    blocks."""
    slot = given(case, 1)
    shape = (slot.shape or ()) if slot and slot.format == FRACTAL_NZ else ()
    if slot is None or len(shape) < 4:
        return 1, 1
    rows, columns = shape[-2:]
    whole = (16, 256 // slot.known_dtype.item_bits) if slot.known_dtype else (rows, columns)
    return whole if (rows, columns) == whole else None


# Products of 16-bit matrices with a FLOAT result, and the releases that launch them.
_NARROW = ("DT_BF16", "FLOAT16")


def is_wide(case: Case) -> bool:
    """Return whether the row has a FLOAT result of a 16-bit product."""
    return spelling(output_slot(case)) == "FLOAT" and spelling(given(case, 0)) in _NARROW


def _fits(case: Case) -> bool:
    out = output_slot(case)
    return not spelling(out) or spelling(out) == spelling(given(case, 0)) or is_wide(case)


OUTPUT_FITS = Constraint(
    "expected an output of the inputs' dtype, or FLOAT for DT_BF16 and FLOAT16", _fits
)


def check_has_product(make: TensorMaker, schema: str) -> None:
    """Raise CaseRejected if this torch_npu has no such product.

    It would compute the product on the host's CPU without a warning."""
    dispatch = make.torch._C
    try:
        is_there = dispatch._dispatch_has_kernel_for_dispatch_key(schema, "PrivateUse1")
    except RuntimeError:  # a torch without the schema
        is_there = False
    if not is_there:
        raise CaseRejected(
            f"FLOAT output of a 16-bit product: expected a torch_npu with {schema}: 2.10.0.post4 "
            "has it, 2.9.0 and 2.10.0 do not"
        )


def wide_output(case: Case, make: TensorMaker, a: Any, schema: str) -> dict[str, Any]:
    """Return the argument of a FLOAT result, if the row has one."""
    if not is_wide(case):
        return {}
    if a.device.type == "npu":
        check_has_product(make, schema)
    return {"out_dtype": make.dtype("FLOAT")}
