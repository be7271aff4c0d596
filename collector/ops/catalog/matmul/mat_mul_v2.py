"""Product of two matrices; the runtime chooses among three kernels, and graphs have a fourth.

NT is a linear layer's forward, NN the gradient of its input, TN that of its weight: shapes that
fit several readings are read as the first of them. Both operands in FRACTAL_NZ are plain ones that
aclnn has converted, or those of torch_npu's own linear layer (`_converted`).
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._converted import are_in_blocks, converted, of_layer
from collector.ops.catalog.matmul._product import (
    Product,
    flops_by,
    group_by_weight,
    read_single_product,
)
from collector.ops.catalog.matmul._wide_output import OUTPUT_FITS, check_release, is_wide
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import given, input_shape
from collector.ops.spec import (
    Call,
    Constraint,
    GraphCall,
    NpuCall,
    OpSpec,
    TensorMaker,
    dense_bytes,
)
from collector.vocabulary import FRACTAL_NZ

_A, _B, _BIAS, _OFFSET = range(4)
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
    a = make.normal(input_shape(case, _A), slot_a.dtype)
    shape = product.weight if product else input_shape(case, _B)
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
    product, weight = product_of(case), given(case, _B)
    is_stored = weight is not None and weight.format == FRACTAL_NZ and not are_in_blocks(case)
    return not is_stored or product is None or min(product.k, product.n) > 1


OP = OpSpec(
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
        nz=frozenset({_B}),
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
        floating((_A, _B)),
        one_dtype((_A, _B), ()),
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
