"""Products by heads whose output has the tokens first."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.matmul._product import flops_by, group_by_weight
from collector.ops.catalog.matmul._transposed_product import (
    HeadsProduct,
    multiply_heads,
    read_heads_product,
)
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import given
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, dense_bytes

_BIAS, _SCALE = 2, 3
_OPTIONAL = frozenset({_BIAS, _SCALE})
_LIMIT = 65536
_HEADS_FIRST, _TOKENS_FIRST = (0, 1, 2), (1, 0, 2)


def _sizes(case: Case) -> HeadsProduct | None:
    return read_heads_product(case, (False, True))


def _is_legal(case: Case) -> bool:
    """What aclnnTransposeBatchMatMul documents for A2 and A3."""
    sizes = _sizes(case)
    if sizes is None or sizes.k % 128 or sizes.n % 128:
        return False
    inner = sizes.heads * sizes.k if sizes.tokens_first else sizes.k
    return min(sizes.k, sizes.n, sizes.heads) > 0 and max(inner, sizes.n, sizes.heads) < _LIMIT


def _tensors(case: Case, make: TensorMaker) -> tuple[Any, Any]:
    x, weight = (case.inputs or ())[:2]
    return make.normal(x.shape or (), x.dtype), make.normal(weight.shape or (), weight.dtype)


def _build(case: Case, make: TensorMaker) -> Call:
    sizes, (x, weight) = _sizes(case), _tensors(case, make)
    if sizes is None:
        return Call((x, weight))
    out = make.empty((sizes.tokens, sizes.heads, sizes.n), (case.inputs or ())[0].dtype)
    return Call((x.transpose(0, 1) if sizes.tokens_first else x, weight, out))


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    sizes = _sizes(case)
    order = _TOKENS_FIRST if sizes and sizes.tokens_first else _HEADS_FIRST
    perms = {"perm_x1": order, "perm_x2": _HEADS_FIRST, "perm_y": _TOKENS_FIRST}
    return Call(_tensors(case, make), perms)


OP = OpSpec(
    kernel="TransposeBatchMatMul",
    call="torch_npu.npu_transpose_batchmatmul",
    slots=("x1", "x2", "bias", "scale"),
    optional=_OPTIONAL,
    reference=multiply_heads,
    build=_build,
    flops=flops_by(_sizes),
    traffic=lambda case: dense_bytes(case, absent=_OPTIONAL),
    group=group_by_weight,
    npu=NpuCall(build=_build_for_npu),
    constraints=(
        Constraint(
            "(heads,tokens,K) or (tokens,heads,K) is wanted, (heads,K,N), and (tokens,heads,N) out",
            lambda case: _sizes(case) is not None,
        ),
        Constraint(
            "K and N want to be multiples of 128, N and heads below 65536, and so K, or heads * K "
            "where the tokens come first",
            _is_legal,
        ),
        floating((0, 1)),
        one_dtype((0, 1)),
        Constraint(
            "a bias or a scale cannot be replayed",
            lambda case: given(case, _BIAS) is None and given(case, _SCALE) is None,
        ),
    ),
)
