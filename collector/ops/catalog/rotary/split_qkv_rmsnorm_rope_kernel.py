"""A projection's row split into queries, keys and values; queries and keys normalised and rotated.

A profile names the projection and the size of the rotation, at times also the table of positions;
the heads follow from the outputs. Where a part of a head is rotated, the column `Runtime head_dim`
tells the size of a head. vLLM-Ascend takes this kernel for few tokens and another one
for many.
"""

import re
from math import gcd
from typing import Any

from collector.case import Case, Slot
from collector.ops.catalog.rotary._tables import make_table, turn
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.serving import FLOATS, nothing_empty
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker
from collector.vocabulary import RUNTIME_PREFIX

_EPSILON = 1e-6
_FEWEST_ROWS = 2048  # of a table that the row does not name
_TABLE = 2
_HEAD = RUNTIME_PREFIX + "head_dim"
_SIZE = re.compile(r"[1-9][0-9]{0,5}")


def head_size(width: int, narrow: int, rotary: int, told: str | None = None) -> int:
    """What a row tells, if it divides queries and keys; else the rotation's size where it does, or
    the next larger divisor."""
    if told is not None:
        size = int(told) if _SIZE.fullmatch(told) else 0
        return 0 if size < rotary or width % size or narrow % size else size
    common = gcd(width, narrow)
    return next((size for size in range(rotary, common + 1) if common % size == 0), 0)


def _widths(case: Case) -> tuple[int, int, int]:
    """Of queries, of keys, and of the rotation; 0 where the row does not tell."""
    query, key, rotary = output_shape(case, 0), output_shape(case, 1), input_shape(case, 1)
    sizes = [shape[-1] if shape else 0 for shape in (query, key, rotary)]
    return sizes[0], sizes[1], sizes[2]


def _rows(case: Case) -> int:
    tables = [shape[0] for shape in (input_shape(case, 1), input_shape(case, _TABLE)) if shape[1:]]
    return tables[0] if tables else max(input_shape(case, 0)[0], _FEWEST_ROWS)


def _build(case: Case, make: TensorMaker) -> Call:
    qkv, rotary, *_ = case.inputs or ()
    queries, keys, size = _widths(case)
    rows, head = _rows(case), head_size(queries, keys, size, case.attribute(_HEAD))
    named: dict[str, Any] = {
        "input": make.normal(qkv.shape or (), qkv.dtype),
        "cos_sin_cache": make_table(make, rows, size, rotary.dtype),
        "positions": make.integers(input_shape(case, 0)[:1], "INT64", 0, rows),
        "q_weight": make.normal((head,), qkv.dtype),
        "k_weight": make.normal((head,), qkv.dtype),
        "q_hidden_size": queries,
        "kv_hidden_size": keys,
        "head_dim": head,
        "eps": _EPSILON,
    }
    return Call((), named)


def _reference(torch: Any, **given: Any) -> Any:
    widths = [given["q_hidden_size"], given["kv_hidden_size"], given["kv_hidden_size"]]
    *queries_and_keys, value = given["input"].split(widths, -1)
    table = given["cos_sin_cache"].index_select(0, given["positions"])
    cos, sin = table.float().unsqueeze(1).chunk(2, -1)
    results = []
    for x, weight in zip(queries_and_keys, (given["q_weight"], given["k_weight"]), strict=True):
        heads = x.unflatten(-1, (-1, given["head_dim"])).float()
        rstd = heads.square().mean(-1, keepdim=True).add_(given["eps"]).rsqrt_()
        turned = turn(torch, (heads * rstd).mul_(weight), cos, sin)
        results.append(turned.flatten(-2).to(x.dtype))
    return *results, value.contiguous()


def _flops(case: Case) -> int:
    """An element of queries and keys: 4 to normalise, 3 to rotate."""
    queries, keys, _ = _widths(case)
    return 7 * input_shape(case, 0)[0] * (queries + keys)


def _traffic(case: Case) -> int:
    """The row is read and written; of the table a row for each token."""
    slots: tuple[Slot, ...] = case.inputs or ()
    qkv, rotary = slots[:2]
    read = input_shape(case, 0)[0] * _widths(case)[2]
    return 2 * qkv.size_bytes + (rotary.known_dtype.bytes_of(read) if rotary.known_dtype else 0)


def _fits(case: Case) -> bool:
    qkv, rotary, table = (input_shape(case, i) for i in range(3))
    queries, keys, size = _widths(case)
    if len(qkv) != 2 or len(rotary) not in (1, 2) or len(table) not in (0, 1, 2):
        return False
    if not queries or not keys or size < 2 or size % 2 or qkv[1] != queries + 2 * keys:
        return False
    value = output_shape(case, 2)
    return (
        output_shape(case, 0) == (qkv[0], queries)
        and output_shape(case, 1) == (qkv[0], keys)
        and value in (None, (qkv[0], keys))
        and table[1:] in ((), (size,))
    )


def _heads_fit(case: Case) -> bool:
    queries, keys, size = _widths(case)
    return queries % keys == 0 and head_size(queries, keys, size, case.attribute(_HEAD)) > 0


OP = OpSpec(
    kernel="split_qkv_rmsnorm_rope_kernel",
    call="torch.ops.vllm.qkv_rmsnorm_rope",
    assumes="any position of the table for each token",
    slots=("qkv", "rope", "table"),
    optional=frozenset({_TABLE}),
    reference=_reference,
    build=_build,
    flops=_flops,
    traffic=_traffic,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "a projection (T, queries + keys + values) is wanted, whose outputs name each part, "
            "and an even size of the rotation",
            _fits,
        ),
        Constraint(
            "the size of a head, the rotation's or the next larger divisor, or a larger one that "
            "Runtime head_dim tells, divides queries and keys, and keys divide queries",
            _heads_fit,
        ),
        nothing_empty(),
        inputs_are(FLOATS, (0, 1)),
        inputs_are((*FLOATS, "INT32", "INT64"), (_TABLE,)),
        one_dtype((0,), (0, 1, 2)),
    ),
)
