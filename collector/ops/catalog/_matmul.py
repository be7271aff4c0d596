"""Matrix products, and how a profile's shapes tell which operand was transposed.

A row names the tensors as they lie in memory. The kernel may read either of them transposed, and
only the output says which. Shapes that fit several readings (a square operand) take the first
of NT, NN, TN, TT: NT is a linear layer's forward, NN the gradient of its input, TN that of its
weight.
"""

from dataclasses import dataclass
from typing import Any

from collector.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import Shape, given, input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker, dense_bytes

_A, _B, _BIAS, _OFFSET = range(4)
_OPTIONAL = frozenset({_BIAS, _OFFSET})


@dataclass(frozen=True, slots=True)
class Product:
    """(m, k) @ (k, n), and which operand lies transposed in memory."""

    m: int
    n: int
    k: int
    transposes_a: bool
    transposes_b: bool

    @property
    def layout(self) -> str:
        """`NN`, `NT`, `TN` or `TT`."""
        return ("T" if self.transposes_a else "N") + ("T" if self.transposes_b else "N")


def product_of(case: Case) -> Product | None:
    """The first reading of the shapes that fits; None where none does."""
    a, b, out = input_shape(case, _A), input_shape(case, _B), output_shape(case)
    if len(a) != 2 or len(b) != 2:
        return None
    for layout in ("NT", "NN", "TN", "TT"):
        product = _read(a, b, layout)
        if product and (out is None or out == (product.m, product.n)):
            return product
    return None


def matmul(kernel: str, twins: tuple[str, ...]) -> OpSpec:
    """A two-dimensional product: NPU hosts launch all its kernels by `torch.mm`."""
    return OpSpec(
        kernel=kernel,
        twins=twins,
        call="torch.mm",
        slots=("a", "b", "bias", "offset"),
        optional=_OPTIONAL,
        reference=_reference,
        build=_build,
        flops=_flops,
        traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
        constraints=_CONSTRAINTS,
        group=_group,
    )


def _reference(torch: Any, a: Any, b: Any, bias: Any = None) -> Any:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _build(case: Case, make: TensorMaker) -> Call:
    product, dtype = product_of(case), _dtype(case, _A)
    a = make.normal(input_shape(case, _A), dtype)
    b = make.normal(input_shape(case, _B), dtype)
    operands = (
        a.t() if product and product.transposes_a else a,
        b.t() if product and product.transposes_b else b,
    )
    bias = given(case, _BIAS)
    # A FLOAT bias of a 16-bit product is converted here, once: addmm wants one dtype.
    biases = (make.normal(bias.shape or (), bias.dtype).to(a.dtype),) if bias else ()
    return Call((*operands, *biases))


def _flops(case: Case) -> int:
    product = product_of(case)
    return 2 * product.m * product.n * product.k if product else 0


def _group(case: Case) -> str:
    """Cases of one weight set up together."""
    slots = ";".join(f"{s.shape}{s.dtype}{s.format}" for s in (case.inputs or ())[_B:_BIAS])
    return f"{case.kernel_type}|{slots}"


def _read(a: Shape, b: Shape, layout: str) -> Product | None:
    m, k = a if layout[0] == "N" else a[::-1]
    inner, n = b if layout[1] == "N" else b[::-1]
    return Product(m, n, k, layout[0] == "T", layout[1] == "T") if inner == k else None


def _dtype(case: Case, position: int) -> str:
    return (case.inputs or ())[position].dtype


def _bias_fits(case: Case) -> bool:
    product, bias = product_of(case), given(case, _BIAS)
    return not bias or (product is not None and bias.shape in ((product.n,), (1, product.n)))


_CONSTRAINTS = (
    Constraint(
        "two matrices are wanted that multiply to the output as NT, NN, TN or TT",
        lambda case: product_of(case) is not None,
    ),
    floating((_A, _B)),
    one_dtype((_A, _B)),
    Constraint("the bias wants one number a column of the output", _bias_fits),
    Constraint("an offset cannot be replayed", lambda case: given(case, _OFFSET) is None),
)
