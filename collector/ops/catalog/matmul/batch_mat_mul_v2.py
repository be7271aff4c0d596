"""Products of matrices in batches; the runtime chooses the kernel.

Of matrices without a batch, as some tables have them, NPUs launch a kernel of MatMulV2's family,
and the measurement is filed there.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._product import Product, flops_by, group_by_weight, read_product
from collector.ops.catalog.matmul._wide_output import OUTPUT_FITS, check_release, is_wide
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import given, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_BIAS, _OFFSET = 2, 3
_OPTIONAL = frozenset({_BIAS, _OFFSET})


def _product(case: Case) -> Product | None:
    """Batches are read as they lie first; one matrix like a linear layer's."""
    batched = len(input_shape(case, 0)) > 2
    return read_product(case, ("NN", "NT", "TN", "TT") if batched else ("NT", "NN", "TN", "TT"))


def _build(case: Case, make: TensorMaker) -> Call:
    product, (slot_a, slot_b, *_) = _product(case), case.inputs or ()
    a = make.normal(slot_a.shape or (), slot_a.dtype)
    b = make.normal(slot_b.shape or (), slot_b.dtype)
    wide = {"bmm": make.torch.bmm, "out_dtype": make.dtype("FLOAT")} if is_wide(case) else {}
    if wide and a.device.type == "npu":
        check_release(make, "aten::bmm.dtype")
    return Call(
        (
            a.transpose(-2, -1) if product and product.transposes_a else a,
            b.transpose(-2, -1) if product and product.transposes_b else b,
        ),
        wide,
    )


def _reference(torch: Any, a: Any, b: Any, *, bmm: Any = None, out_dtype: Any = None) -> Any:
    if out_dtype in (None, a.dtype):
        return torch.matmul(a, b)
    if a.is_cuda:
        return bmm(a, b, out_dtype=out_dtype)
    return torch.matmul(a.to(out_dtype), b.to(out_dtype))


def _launch(matmul: Any, a: Any, b: Any, *, bmm: Any = None, out_dtype: Any = None) -> Any:
    """`torch.matmul` launches `bmm`, and cannot be told a dtype."""
    return matmul(a, b) if bmm is None else bmm(a, b, out_dtype=out_dtype)


def _is_one_batch(case: Case) -> bool:
    a, b = input_shape(case, 0), input_shape(case, 1)
    return len(a) == len(b) == 3 and a[0] == b[0]


OP = OpSpec(
    kernel="BatchMatMulV2",
    twins=("BatchMatMulV3", "BatchMatMulNd"),
    call="torch.matmul",
    slots=("a", "b", "bias", "offset"),
    optional=_OPTIONAL,
    reference=_reference,
    build=_build,
    flops=flops_by(_product),
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    group=group_by_weight,
    npu=NpuCall(run=_launch),
    constraints=(
        Constraint(
            "two batches of matrices are wanted that multiply to the output as NN, NT, TN or TT",
            lambda case: _product(case) is not None,
        ),
        floating((0, 1)),
        one_dtype((0, 1), ()),
        OUTPUT_FITS,
        Constraint(
            "FLOAT of products of 16 bits wants (B,M,K) and as many (K,N)",
            lambda case: not is_wide(case) or _is_one_batch(case),
        ),
        Constraint(
            "a bias or an offset cannot be replayed",
            lambda case: given(case, _BIAS) is None and given(case, _OFFSET) is None,
        ),
    ),
)
