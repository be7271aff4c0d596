"""vLLM-Ascend's own product by heads, tokens first on both sides."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._product import flops_by, group_by_weight
from collector.ops.catalog.matmul._transposed_product import (
    HeadsProduct,
    multiply_heads,
    read_heads_product,
)
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker


def _sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (True,))


def _tensors(case: Case, make: TensorMaker) -> tuple[Any, Any, Any]:
    """The operands, and the place of the output, which the caller provides."""
    x, weight = (make.normal(slot.shape or (), slot.dtype) for slot in case.inputs or ())
    sizes = _sizes(case)
    shape = (sizes.tokens, sizes.heads, sizes.n) if sizes else ()
    return x, weight, make.empty(shape, (case.inputs or ())[0].dtype)


def _build(case: Case, make: TensorMaker) -> Call:
    x, weight, out = _tensors(case, make)
    return Call((x.transpose(0, 1), weight, out))


def _launch(multiply: Any, x: Any, weight: Any, out: Any) -> Any:
    multiply(x, weight, out)
    return out


OP = OpSpec(
    kernel="batch_matmul_transpose_0",
    call="torch.ops._C_ascend.batch_matmul_transpose",
    slots=("x", "weight"),
    reference=multiply_heads,
    build=_build,
    flops=flops_by(_sizes),
    group=group_by_weight,
    npu=NpuCall(
        run=_launch,
        build=lambda case, make: Call(_tensors(case, make)),
        needs=frozenset({Need.VLLM_ASCEND}),
    ),
    constraints=(
        Constraint(
            "(tokens,heads,K) is wanted, (heads,K,N), and (tokens,heads,N) out",
            lambda case: _sizes(case) is not None,
        ),
        inputs_are(("DT_BF16", "FLOAT16"), (0, 1)),
        one_dtype((0, 1)),
    ),
)
