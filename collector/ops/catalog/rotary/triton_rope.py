"""Rotary positions of queries and keys in place, looked up in a table by each token's position.

The launch is vLLM-Ascend's up to 0.18 and with Triton; later versions run another kernel from the
same function.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rotary._tables import make_table, turn
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, nothing_empty, outputs_agree
from collector.ops.slots import elements, given, input_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_POSITIONS = 3


def _build(case: Case, make: TensorMaker) -> Call:
    query, key, table, *_ = case.inputs or ()
    tokens, _, head_size = query.shape or (0, 0, 0)
    rows, size = table.shape or (0, 0)
    positions = given(case, _POSITIONS)
    return Call(
        (
            make.integers((tokens,), positions.dtype if positions else "INT64", 0, rows),
            make.normal(query.shape or (), query.dtype),
            make.normal(key.shape or (), key.dtype),
            make_table(make, rows, size, table.dtype),
            head_size,
            size,
            True,
        )
    )


def _reference(
    torch: Any,
    positions: Any,
    query: Any,
    key: Any,
    table: Any,
    head_size: int,
    rotary_size: int,
    halves: bool,
) -> Any:
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    return turn(torch, query, cos, sin), turn(torch, key, cos, sin)


def _traffic(case: Case) -> int:
    """Queries and keys are read and written; of the table a row for each token."""
    query, key, table, *_ = case.inputs or ()
    rows, *_ = table.shape or (1,)
    tokens = input_shape(case, 0)[0]
    return 2 * (query.size_bytes + key.size_bytes) + tokens * table.size_bytes // rows


def _fits(case: Case) -> bool:
    query, key, table = (input_shape(case, i) for i in range(3))
    if len(query) != 3 or len(key) != 3 or len(table) != 2 or table[1] % 2:
        return False
    positions = given(case, _POSITIONS)
    return (
        (key[0], key[2]) == (query[0], query[2])
        and table[1] <= query[2]
        and (positions is None or positions.shape == query[:1])
        and outputs_agree(case, query, key)
    )


OP = OpSpec(
    kernel="_triton_rope",
    call="torch.ops.vllm.npu_rotary_embedding",
    assumes="any position of the table for each token",
    slots=("query", "key", "cos_sin_cache", "positions"),
    optional=frozenset({_POSITIONS}),
    reference=_reference,
    build=_build,
    flops=lambda case: 3 * sum(elements(input_shape(case, i)) for i in range(2)),
    traffic=_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "queries and keys (T,N,D) are wanted, and a table (positions, D or less, even)", _fits
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0, 1, 2)),
        inputs_are(("INT32", "INT64"), (_POSITIONS,)),
        one_dtype((0,), (0,)),
        one_dtype((1,), (1,)),
    ),
)
