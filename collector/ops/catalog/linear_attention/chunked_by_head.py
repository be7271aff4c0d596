"""The gated delta rule over a prompt, in chunks of 64 tokens: vLLM-Ascend's own kernels since 0.23.

They take the place of the last two Triton kernels (`chunked.py`), and have the heads of each tensor
before its tokens. Ends of requests and the place of each chunk are numbers of the host, which the
kernels get as tensors of INT64: their prototypes say so
(`_cann_ops_custom/.../op_proto/inc/chunk_fwd_o_proto.h`).
"""

from typing import Any

from collector.model.case import Case
from collector.ops.catalog.linear_attention.chunked import (
    CHUNK,
    OUTPUT_OPERATIONS,
    STATES_OPERATIONS,
    Chunks,
    chunk_kernel,
    falling_gates,
    output_reference,
    states_reference,
    unit_rows,
)
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.spec import Call, Need, TensorMaker


def _listed(sizes: Chunks) -> dict[str, list[int]]:
    """Return the ends of requests from 0 on, and the request and the number within it of each
    chunk."""
    places = [number for place in sizes.indices() for number in place]
    return {"cu_seqlens": [*sizes.ends], "chunk_indices": places}


def _gates(case: Case, position: int, make: TensorMaker, sizes: Chunks) -> Any:
    dtype = (case.inputs or ())[position].dtype
    return falling_gates(make, sizes).unsqueeze(0).to(make.dtype(dtype))


def _states_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    slots = case.inputs or ()
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


def _output_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    slots = case.inputs or ()
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


_NEEDS = frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})
_KEYS, _VALUES = "T:half[1, key_heads, t, d]", "T[1, heads, t, d_value]"
_TABLE = "cu_seqlens INT64[bounds], chunk_indices INT64[places]"
_WHERE = """where 0 < t * key_heads * d * heads, heads % key_heads == 0, places % 2 == 0,
d <= 128, d_value == 128"""  # a product has one block of keys and values

CHUNK_GATED_DELTA_RULE_FWD_H = chunk_kernel(
    "ChunkGatedDeltaRuleFwdH",
    "torch.ops._C_ascend.chunk_gated_delta_rule_fwd_h",
    f"k {_KEYS}, w T[1, heads, t, d], u {_VALUES}, g float[1, heads, t],"
    f" initial_state S:float[bounds - 1, heads, d, d_value], {_TABLE}"
    f" -> h T[1, heads, places // 2, d, d_value], v_new {_VALUES},"
    f" final_state S[bounds - 1, heads, d, d_value] {_WHERE}",
    STATES_OPERATIONS,
    _states_build,
    _states_reference,
    needs=_NEEDS,
    launched_by={
        "aclnnChunkGatedDeltaRuleFwdH": arguments_at(
            initial_state=5, cu_seqlens=9, chunk_indices=10, outputs=-3
        )
    },
)

CHUNK_FWD_O = chunk_kernel(
    "ChunkFwdO",
    "torch.ops._C_ascend.chunk_fwd_o",
    f"q {_KEYS}, k {_KEYS}, v {_VALUES}, h T[1, heads, places // 2, d, d_value],"
    f" g float[1, heads, t], {_TABLE} -> o {_VALUES} {_WHERE}",
    OUTPUT_OPERATIONS,
    _output_build,
    _output_reference,
    needs=_NEEDS,
    launched_by={"aclnnChunkFwdO": arguments_at(outputs=-1)},
)
