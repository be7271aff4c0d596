"""The gated delta rule over a prompt, in chunks of 64 tokens: vLLM-Ascend's own kernels since 0.23.

They take the place of the last two Triton kernels (`chunked.py`), and have the heads of each tensor
before its tokens. Ends of requests and the place of each chunk are numbers of the host, which the
kernels get as tensors of INT64: their prototypes say so
(`_cann_ops_custom/.../op_proto/inc/chunk_fwd_o_proto.h`).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.catalog.linear_attention.chunked import (
    ASSUMES,
    CHUNK,
    Chunks,
    call_without_sizes,
    falling_gates,
    flops_of,
    of_heads,
    output_reference,
    states_reference,
    unit_rows,
)
from collector.ops.parts import like
from collector.ops.slots import input_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_ENDS, _TABLE = 5, 6
_BLOCK = 128  # of a product: keys and values have one


def _turned(shape: Shape) -> Shape:
    """Return the shape with heads and tokens exchanged; empty if it has other dimensions."""
    return (shape[0], shape[2], shape[1], shape[3]) if len(shape) == 4 else ()


def _sizes(case: Case, key: Shape, value: Shape) -> Chunks | None:
    """Return the sizes of keys (1,Hk,T,K) and values (1,H,T,V) with the numbers of a table of
    chunks; None if they do not fit."""
    table = input_shape(case, _TABLE)
    if len(table) != 1 or table[0] % 2 or len(input_shape(case, _ENDS)) != 1:
        return None
    return of_heads(case, _turned(key), _turned(value), _ENDS, table[0] // 2)


@lru_cache(maxsize=256)
def _of_states(case: Case) -> Chunks | None:
    key, weights, value, gates, state = (input_shape(case, i) for i in range(5))
    sizes = _sizes(case, key, value)
    if sizes is None or gates != value[:3] or weights != (*value[:3], sizes.key_size):
        return None
    sides = sizes.key_size, sizes.value_size
    if state != (len(sizes.lengths), sizes.heads, *sides):
        return None
    states = 1, sizes.heads, len(sizes.chunks), *sides
    return sizes if outputs_agree(case, states, value, state) else None


@lru_cache(maxsize=256)
def _of_output(case: Case) -> Chunks | None:
    query, key, value, states, gates = (input_shape(case, i) for i in range(5))
    sizes = _sizes(case, key, value)
    if sizes is None or query != key or gates != value[:3]:
        return None
    expected = 1, sizes.heads, len(sizes.chunks), sizes.key_size, sizes.value_size
    return sizes if states == expected and outputs_agree(case, value) else None


def _listed(sizes: Chunks) -> dict[str, list[int]]:
    """Return the ends of requests from 0 on, and the request and the number within it of each
    chunk."""
    places = [number for place in sizes.indices() for number in place]
    return {"cu_seqlens": [*sizes.ends], "chunk_indices": places}


def _gates(case: Case, position: int, make: TensorMaker, sizes: Chunks) -> Any:
    dtype = (case.inputs or ())[position].dtype
    return falling_gates(make, sizes).unsqueeze(0).to(make.dtype(dtype))


def _states_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = rules.accepted(_of_states(case)), case.inputs or ()
    return Call(
        unit_rows(case, 0, make),
        unit_rows(case, 1, make),
        like.normal(slots[2], make),
        g=_gates(case, 3, make, sizes),
        gk=None,
        initial_state=like.normal(slots[4], make),
        output_final_state=True,
        chunk_size=CHUNK,
        save_new_value=True,
        **_listed(sizes),
        use_exp2=False,
        transpose_state_layout=False,
        sizes=sizes,
    )


def _states_reference(
    torch: Any,
    k: Any,
    w: Any,
    u: Any,
    *,
    g: Any,
    initial_state: Any,
    sizes: Chunks,
    **others: Any,
) -> Any:
    turned = {name: x.transpose(1, 2) for name, x in (("k", k), ("w", w), ("u", u))}
    states, new, final = states_reference(
        torch, **turned, g=g.transpose(1, 2).float(), initial_state=initial_state, sizes=sizes
    )
    by_head = (x.transpose(1, 2).contiguous() for x in (states, new))
    return *by_head, final.to(initial_state.dtype)


def _output_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = rules.accepted(_of_output(case)), case.inputs or ()
    return Call(
        unit_rows(case, 0, make),
        unit_rows(case, 1, make),
        like.normal(slots[2], make),
        like.normal(slots[3], make),
        float(sizes.key_size**-0.5),
        g=_gates(case, 4, make, sizes),
        g_gamma=None,
        **_listed(sizes),
        chunk_size=CHUNK,
        transpose_state_layout=False,
        sizes=sizes,
    )


def _output_reference(
    torch: Any,
    q: Any,
    k: Any,
    v: Any,
    h: Any,
    scale: float,
    *,
    g: Any,
    sizes: Chunks,
    **others: Any,
) -> Any:
    tensors = (("q", q), ("k", k), ("v", v), ("h", h), ("g", g))
    turned = {name: x.transpose(1, 2) for name, x in tensors}
    turned["g"] = turned["g"].float()
    found = output_reference(torch, sizes=sizes, scale=scale, **turned)
    return found.transpose(1, 2).contiguous()


def _kernel(
    kernel: str,
    function: str,
    read: Callable[[Case], Chunks | None],
    of: str,
    build: Callable[[Case, TensorMaker], Call],
    reference: Callable[..., Any],
    slots: Sequence[str],
    text: str,
    dtypes: Sequence[Constraint],
) -> OpSpec:
    """Return the declaration of one kernel; `of` names it among those that have its operations."""

    def is_in_blocks(case: Case) -> bool:
        sizes = rules.accepted(read(case))
        return sizes.key_size <= _BLOCK and sizes.value_size == _BLOCK

    return OpSpec(
        kernel=kernel,
        call=f"torch.ops._C_ascend.{function}",
        assumes=ASSUMES,
        slots=(*slots, "cu_seqlens", "chunk_indices"),
        reference=reference,
        build=build,
        flops=flops_of(read, of),
        npu=NpuCall(run=call_without_sizes, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
        constraints=(
            Constraint(text, lambda case: read(case) is not None),
            Constraint(
                f"expected keys of up to {_BLOCK} numbers, and values of {_BLOCK}",
                is_in_blocks,
            ),
            rules.inputs_are(rules.HALF_DTYPES, (0,)),
            *dtypes,
            rules.inputs_are(("INT64",), (_ENDS, _TABLE)),
        ),
    )


_TABLES = "ends of requests from 0 on, and two numbers for each chunk of 64 tokens"

CHUNK_GATED_DELTA_RULE_FWD_H = _kernel(
    "ChunkGatedDeltaRuleFwdH",
    "chunk_gated_delta_rule_fwd_h",
    _of_states,
    "states",
    _states_build,
    _states_reference,
    ("k", "w", "u", "g", "initial_state"),
    "expected keys (1,Hk,T,K), weights (1,H,T,K), values (1,H,T,V), gates (1,H,T), states "
    f"(requests,H,K,V), {_TABLES}, and outputs (1,H,chunks,K,V), like values and like states",
    (
        rules.one_dtype((0, 1, 2), (0, 1)),
        rules.inputs_are(rules.FLOATS, (3, 4)),
        rules.one_dtype((4,), (2,)),
    ),
)

CHUNK_FWD_O = _kernel(
    "ChunkFwdO",
    "chunk_fwd_o",
    _of_output,
    "output",
    _output_build,
    _output_reference,
    ("q", "k", "v", "h", "g"),
    "expected queries and keys (1,Hk,T,K), values (1,H,T,V), states (1,H,chunks,K,V), gates "
    f"(1,H,T), {_TABLES}, and an output like values",
    (rules.one_dtype((0, 1, 2, 3), (0,)), rules.inputs_are(rules.FLOATS, (4,))),
)
