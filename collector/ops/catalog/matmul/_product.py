"""How shapes tell which operand of a matrix product was transposed.

A row names the tensors as they lie in memory. The kernel may read either of them transposed, and
only the output says which. Shapes that fit several readings (a square operand) take the first
in the operator's order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.model.vocabulary import FRACTAL_NZ
from collector.ops.dtypes import spelling
from collector.ops.slots import Shape, broadcast, given, input_shape, output_shape, output_slot
from collector.ops.spec import Constraint, TensorMaker


@dataclass(frozen=True, slots=True)
class Product:
    """(.., m, k) @ (.., k, n), and which operand lies transposed in memory."""

    m: int
    n: int
    k: int
    transposes_a: bool
    transposes_b: bool
    batch: Shape = ()

    @property
    def layout(self) -> str:
        """`NN`, `NT`, `TN` or `TT`."""
        return ("T" if self.transposes_a else "N") + ("T" if self.transposes_b else "N")

    @property
    def shape(self) -> Shape:
        """The shape of the output."""
        return (*self.batch, self.m, self.n)

    @property
    def weight(self) -> Shape:
        """The second operand as it lies in memory, one matrix of it, without what pads it."""
        return (self.n, self.k) if self.transposes_b else (self.k, self.n)

    @property
    def flops(self) -> int:
        """A product and a sum for each pair of numbers that meet."""
        return 2 * prod(self.shape) * self.k


def read_product(case: Case, layouts: Sequence[str]) -> Product | None:
    """What inputs 1 and 2 multiply to: the first of these layouts that fits; None where none
    does. Both want the same number of dimensions, those before the last two being a batch."""
    a, b, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    batch = broadcast(a[:-2], b[:-2])
    pads = _blocks(case)
    if len(a) < 2 or len(a) != len(b) or batch is None or pads is None:
        return None
    fits = (_read(a, b, out, layout, batch, pads) for layout in layouts)
    return next((product for product in fits if product is not None), None)


def read_single_product(case: Case, layouts: Sequence[str]) -> Product | None:
    """What two matrices multiply to, read likewise; None where there is a batch."""
    product = read_product(case, layouts)
    return product if product and not product.batch else None


def read_weight_product(case: Case) -> Product | None:
    """What a matrix and a weight multiply to. A weight lies as it is multiplied, first of all; only
    it may be transposed."""
    return read_single_product(case, ("NN", "NT"))


class Counted(Protocol):
    """The sizes of a call, which say what it computes."""

    @property
    def flops(self) -> int: ...


def flops_by(read: Callable[[Case], Counted | None]) -> Callable[[Case], int]:
    """The operations of a case by the reading of its sizes; 0 where that finds none."""

    def flops(case: Case) -> int:
        sizes = read(case)
        return sizes.flops if sizes else 0

    return flops


def group_by_weight(case: Case) -> str:
    """Cases of one weight, the second input, set up together."""
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
    """Rows and columns that FRACTAL_NZ rounds the second operand up to, 16 and as many as 32 bytes
    hold; 1 where it does not, None where it lies in others."""
    slot = given(case, 1)
    shape = (slot.shape or ()) if slot and slot.format == FRACTAL_NZ else ()
    if slot is None or len(shape) < 4:
        return 1, 1
    rows, columns = shape[-2:]
    whole = (16, 256 // slot.known_dtype.item_bits) if slot.known_dtype else (rows, columns)
    return whole if (rows, columns) == whole else None


# Products of 16-bit matrices that are given back as FLOAT, and which releases launch them.
_NARROW = ("DT_BF16", "FLOAT16")


def is_wide(case: Case) -> bool:
    """Whether the row gives FLOAT back of a product of 16 bits."""
    return spelling(output_slot(case)) == "FLOAT" and spelling(given(case, 0)) in _NARROW


def _fits(case: Case) -> bool:
    out = output_slot(case)
    return not spelling(out) or spelling(out) == spelling(given(case, 0)) or is_wide(case)


OUTPUT_FITS = Constraint(
    "an output of the inputs' dtype is wanted, or FLOAT of DT_BF16 and FLOAT16", _fits
)


def check_release(make: TensorMaker, schema: str) -> None:
    """Raises CaseRejected where this torch_npu has no such product. It would leave one to the
    host's processor without a word."""
    dispatch = make.torch._C
    try:
        is_there = dispatch._dispatch_has_kernel_for_dispatch_key(schema, "PrivateUse1")
    except RuntimeError:  # a torch that has not even the schema
        is_there = False
    if not is_there:
        raise CaseRejected(
            f"FLOAT of a product of 16 bits wants torch_npu with {schema}: 2.10.0.post4 has it, "
            "2.9.0 and 2.10.0 have not"
        )
