"""The gated delta rule over a prompt, in chunks of 64 tokens: Triton kernels of vLLM-Ascend.

A prompt is processed by seven kernels, each launched by its own function of the package
(`vllm_ascend/ops/triton/fla`): sums of gates within chunks, products of keys, the inverse of a
triangular matrix (two kernels), new values, states, and the output. Profiles show no tensors of
Triton kernels: rows are those of a recording, with the tensors of a launch in its order.

Requests are one after the other, and chunks begin with each of them. Lengths are equal, if so many
chunks result as the row has; a last request that pads the pass may be empty. Else as many of the
first requests as possible decode one token each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.signature import Sizes, parse_signature
from collector.ops.slots import output_slot
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

CHUNK = 64
_BLOCK = 16  # of the inverse's first kernel
_LARGE_BLOCK = 1216  # tokens of a program of that kernel
_NUMBERS_OF_SUMS = 1 << 18  # numbers of a program that sums gates
_PACKAGE = "vllm_ascend.ops.triton.fla"


@dataclass(frozen=True, slots=True)
class Chunks:
    """The sizes of a call: tokens of each request, heads of values and of keys, and their numbers;
    `block` is the number of tokens of a row of the chunk indices."""

    lengths: Shape
    heads: int = 1
    key_heads: int = 1
    key_size: int = 1
    value_size: int = 1
    block: int = CHUNK

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """Return the request, the first token and the token after the last one of each chunk."""
        return [
            (request, start + begin, start + min(begin + CHUNK, length))
            for request, (start, length) in enumerate(zip(self.ends, self.lengths, strict=False))
            for begin in range(0, length, CHUNK)
        ]

    @property
    def ends(self) -> Shape:
        """Return the ends of requests, from 0 on."""
        return (0, *cumulative_ends(self.lengths))

    def indices(self) -> list[tuple[int, int]]:
        """Return the request and the number within it of each block of tokens."""
        return [
            (request, number)
            for request, length in enumerate(self.lengths)
            for number in range(-(-length // self.block))
        ]

    def offsets(self) -> Shape:
        """Return the number of chunks before each request, and of all."""
        return (0, *cumulative_ends([-(-length // CHUNK) for length in self.lengths]))


def _lengths(requests: int, tokens: int, blocks: int | None, block: int) -> Shape:
    """Return the lengths of requests that have this number of blocks of tokens, or of any number;
    empty if none fit."""
    for decodes, empty in product((0, *range(requests - 1, 0, -1)), (0, 1)):
        prompts = requests - empty - decodes
        if not 0 < prompts <= tokens - decodes:
            continue
        share, larger = divmod(tokens - decodes, prompts)
        each, more = -(-share // block), -(-(share + 1) // block)
        if blocks in (None, decodes + larger * more + (prompts - larger) * each):
            parts = equal_parts(tokens - decodes, prompts)
            return (*(1,) * decodes, *parts, *(0,) * empty)
    return ()


def _block_of_sums(heads: int) -> int:
    """Return the tokens of a program that sums gates."""
    return 1 << max(0, (_NUMBERS_OF_SUMS // (heads * CHUNK) - 1).bit_length())


def _chunks(sizes: Sizes, block: int) -> Chunks | None:
    """Return the sizes of a call whose requests have so many blocks of tokens as it names."""
    blocks = sizes["places"] // 2 if "places" in sizes else sizes.get("chunks")
    lengths = _lengths(sizes["bounds"] - 1, sizes["t"], blocks, block)
    heads, key_heads, d, d_value = (
        sizes.get(name, 1) for name in ("heads", "key_heads", "d", "d_value")
    )
    return Chunks(lengths, heads, key_heads, d, d_value, block) if lengths else None


# Tensors of the kernels: keys of length 1 about, and gates that fall within a chunk.


def _ends(make: TensorMaker, sizes: Chunks) -> Any:
    return make.tensor(sizes.ends, "INT32")


def _index_table(make: TensorMaker, sizes: Chunks) -> Any:
    return make.tensor(sizes.indices(), "INT32")


def unit_rows(case: Case, position: int, make: TensorMaker) -> Any:
    slot = (case.inputs or ())[position]
    return like.normal(slot, make).mul_((slot.shape or (1,))[-1] ** -0.5)


def falling_gates(make: TensorMaker, sizes: Chunks) -> Any:
    """Return sums of logarithms of gates, (H, T) FLOAT: they fall by a rate of each head."""
    places = [place for _, start, stop in sizes.chunks for place in range(1, stop - start + 1)]
    rates = make.uniform((sizes.heads, 1), "FLOAT", -0.05, -0.01)
    return rates * make.tensor(places, "FLOAT")


def _lower(make: TensorMaker, sizes: Chunks, dtype: str) -> Any:
    """Return small matrices of chunks, (1, T, H, 64), without numbers on and above the diagonal."""
    places = [place for _, start, stop in sizes.chunks for place in range(stop - start)]
    row = make.tensor(places, "INT64").view(-1, 1, 1)
    column = make.tensor(range(CHUNK), "INT64")
    made = make.normal((sizes.tokens, sizes.heads, CHUNK), dtype).mul_(0.05)
    return made.masked_fill(column >= row, 0).unsqueeze(0)


def _sums_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    gates = like.uniform_like((case.inputs or ())[0], make, -0.1, 0.0)
    ends, table = _ends(make, sizes), _index_table(make, sizes)
    return Call(gates, chunk_size=CHUNK, cu_seqlens=ends, block_indices=table, sizes=sizes)


def _sums_reference(torch: Any, gates: Any, *, sizes: Chunks, **others: Any) -> Any:
    out = torch.empty_like(gates, dtype=torch.float32)
    for _, start, stop in sizes.chunks:
        out[:, start:stop] = gates[:, start:stop].float().cumsum(1)
    return out


def _run(api: Any, *args: Any, sizes: Chunks, **named: Any) -> Any:
    return api(*args, **named)


def _products_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    """Build the call. Tensors by head are views of those that the kernel gets, so that the function
    copies none."""
    beta = like.uniform_like((case.inputs or ())[1], make, 0.0, 1.0)
    gates = falling_gates(make, sizes).unsqueeze(1)
    return Call(
        unit_rows(case, 0, make),
        beta=beta.permute(1, 2, 0),
        g_cumsum=gates.permute(1, 2, 0),
        cu_seqlens=_ends(make, sizes),
        chunk_indices=_index_table(make, sizes),
        sizes=sizes,
    )


def _by_head(tensor: Any, sizes: Chunks, start: int, stop: int) -> Any:
    """Return a chunk of keys or queries as (heads of values, tokens, numbers) in float32."""
    part = tensor[0, start:stop].transpose(0, 1).float()
    return part.repeat_interleave(sizes.heads // sizes.key_heads, 0)


def _decay(gates: Any) -> Any:
    """Return exp(g_i - g_j) for tokens j up to i of a chunk, (.., tokens, tokens), else 0."""
    return (gates.unsqueeze(-1) - gates.unsqueeze(-2)).tril_().exp_().tril_()


def _products_reference(
    torch: Any, key: Any, *, beta: Any, g_cumsum: Any, sizes: Chunks, **others: Any
) -> Any:
    shape = (*key.shape[:2], sizes.heads, CHUNK)
    out = torch.zeros(shape, dtype=torch.float32, device=key.device)
    for _, start, stop in sizes.chunks:
        keys = _by_head(key, sizes, start, stop)
        decay = _decay(g_cumsum[0, start:stop].t())
        weight = beta[0, start:stop].t().float().unsqueeze(-1)
        product = (keys @ keys.transpose(1, 2)) * decay * weight
        out[0, start:stop, :, : stop - start] = product.tril_(-1).transpose(0, 1)
    return out


def _inverse_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    named = output_slot(case)
    matrices = _lower(make, sizes, (case.inputs or ())[0].dtype)
    large, small = replace(sizes, block=_LARGE_BLOCK), replace(sizes, block=CHUNK)
    return Call(
        matrices,
        cu_seqlens=_ends(make, sizes),
        chunk_indices_large_block=_index_table(make, large),
        chunk_indices_bt=_index_table(make, small),
        output_dtype=make.dtype(named.dtype if named else "DT_BF16"),
        sizes=sizes,
    )


def _inverse_reference(block: int) -> Callable[..., Any]:
    """Return the reference of the inverse of I + A, in blocks of chunks or of 16 tokens."""

    def run(torch: Any, matrices: Any, *, sizes: Chunks, output_dtype: Any, **others: Any) -> Any:
        dtype = output_dtype if block == CHUNK else matrices.dtype
        shape = (*matrices.shape[:3], block)
        out = torch.zeros(shape, dtype=dtype, device=matrices.device)
        for _, start, stop in sizes.chunks:
            for first in range(start, stop, block):
                last = min(first + block, stop)
                own = slice(first - start, last - start)
                part = matrices[0, first:last, :, own].transpose(0, 1).float()
                unit = torch.eye(last - first, device=part.device)
                found = torch.linalg.solve_triangular(
                    part + unit, unit.expand_as(part), upper=False, unitriangular=True
                )
                out[0, first:last, :, : last - first] = found.transpose(0, 1).to(dtype)
        return out

    return run


def _values_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    beta = like.uniform_like(slots[2], make, 0.0, 1.0)
    return Call(
        k=unit_rows(case, 0, make),
        v=like.normal(slots[1], make),
        beta=beta.transpose(1, 2),
        g_cumsum=falling_gates(make, sizes).unsqueeze(0).transpose(1, 2),
        A=_lower(make, sizes, slots[3].dtype),
        cu_seqlens=_ends(make, sizes),
        chunk_indices=_index_table(make, sizes),
        sizes=sizes,
    )


def _values_reference(
    torch: Any,
    *,
    k: Any,
    v: Any,
    beta: Any,
    g_cumsum: Any,
    A: Any,
    sizes: Chunks,
    **others: Any,
) -> Any:
    w = k.new_empty((*v.shape[:3], sizes.key_size))
    u = torch.empty_like(v)
    for _, start, stop in sizes.chunks:
        inverse = A[0, start:stop, :, : stop - start].transpose(0, 1).float()
        weight = beta[0, start:stop].t().float().unsqueeze(-1)
        gate = g_cumsum[0, start:stop].t().exp().unsqueeze(-1)
        values = v[0, start:stop].transpose(0, 1).float()
        u[0, start:stop] = (inverse @ (values * weight)).transpose(0, 1).to(u.dtype)
        keys = _by_head(k, sizes, start, stop) * weight * gate
        w[0, start:stop] = (inverse @ keys).transpose(0, 1).to(w.dtype)
    return w, u


def _states_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    return Call(
        k=unit_rows(case, 0, make),
        w=unit_rows(case, 2, make),
        u=like.normal(slots[1], make),
        g=falling_gates(make, sizes).unsqueeze(0).transpose(1, 2),
        initial_state=like.normal(slots[4], make),
        output_final_state=True,
        cu_seqlens=_ends(make, sizes),
        chunk_indices=_index_table(make, sizes),
        chunk_offsets=make.tensor(sizes.offsets(), "INT32"),
        sizes=sizes,
    )


def states_reference(
    torch: Any,
    *,
    k: Any,
    w: Any,
    u: Any,
    g: Any,
    initial_state: Any,
    sizes: Chunks,
    **others: Any,
) -> Any:
    states = k.new_empty((1, len(sizes.chunks), *initial_state.shape[1:]))
    new, final = torch.empty_like(u), initial_state.to(torch.float32, copy=True)
    for number, (request, start, stop) in enumerate(sizes.chunks):
        states[0, number] = final[request].to(states.dtype)
        written = (w[0, start:stop].transpose(0, 1).float() @ final[request]).transpose(0, 1)
        values = u[0, start:stop].float() - written
        new[0, start:stop] = values.to(new.dtype)
        gates = g[0, start:stop].t()
        rest = (gates[:, -1:] - gates).exp().t().unsqueeze(-1)
        keys = _by_head(k, sizes, start, stop).transpose(1, 2)
        kept = final[request] * gates[:, -1].exp().view(-1, 1, 1)
        final[request] = kept + keys @ (values * rest).transpose(0, 1)
    return states, new, final


def _output_build(case: Case, sizes: Chunks, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    return Call(
        q=unit_rows(case, 0, make),
        k=unit_rows(case, 1, make),
        v=like.normal(slots[2], make),
        h=like.normal(slots[3], make),
        g=falling_gates(make, sizes).unsqueeze(0).transpose(1, 2),
        scale=float(sizes.key_size**-0.5),
        cu_seqlens=_ends(make, sizes),
        sizes=sizes,
    )


def output_reference(torch: Any, *, sizes: Chunks, scale: float, **tensors: Any) -> Any:
    q, k, v, h, g = (tensors[name] for name in "qkvhg")
    out = torch.empty_like(v)
    for number, (_, start, stop) in enumerate(sizes.chunks):
        query, key = (_by_head(tensor, sizes, start, stop) for tensor in (q, k))
        gates = g[0, start:stop].t()
        earlier = (query @ h[0, number].float()) * gates.exp().unsqueeze(-1)
        products = (query @ key.transpose(1, 2)) * _decay(gates)
        own = products @ v[0, start:stop].transpose(0, 1).float()
        out[0, start:stop] = ((earlier + own) * scale).transpose(0, 1).to(out.dtype)
    return out


def chunk_kernel(
    kernel: str,
    call: str,
    signature: str,
    operations: str,
    build: Callable[[Case, Chunks, TensorMaker], Call],
    reference: Callable[..., Any],
    block: Callable[[int], int] = lambda heads: CHUNK,
    needs: frozenset[Need] = frozenset({Need.TRITON}),
    **fields: Any,
) -> OpSpec:
    """Return the declaration of one kernel with its operations for each token and head of values.
    `block` returns the tokens of a row of the chunk indices, by the number of heads."""
    read = parse_signature(signature)

    @lru_cache(maxsize=256)
    def chunks(case: Case) -> Chunks | None:
        sizes = read.sizes(case)
        return _chunks(sizes, block(sizes["heads"]))

    return OpSpec(
        kernel=kernel,
        call=call,
        assumes="requests of equal lengths, behind requests of one token and before an empty one "
        "where the number of chunks requires them",
        signature=signature,
        reference=reference,
        build=lambda case, make: build(case, rules.accepted(chunks(case)), make),
        operations=f"t * heads * ({operations})",
        npu=NpuCall(run=_run, needs=needs),
        constraints=(
            rules.reads("expected an index for each chunk of the requests' tokens", chunks),
        ),
        **fields,
    )


# Queries, keys and values of all kernels. Twice the products of matrices are the operations.
_KEYS = "T:float[1, t, key_heads, d]"
_VALUES = "T[1, t, heads, d_value]"
_TABLE = "cu_seqlens INT32[bounds], chunk_indices INT32[chunks, 2]"
_WHERE = "where 0 < t * key_heads * d * heads, heads % key_heads == 0"
STATES_OPERATIONS = "4 * d * d_value"
OUTPUT_OPERATIONS = f"2 * d * d_value + 2 * {CHUNK} * (d + d_value)"

CHUNK_LOCAL_CUMSUM = chunk_kernel(
    "chunk_local_cumsum_scalar_kernel",
    f"{_PACKAGE}.cumsum.chunk_local_cumsum",
    f"g float[1, t, heads], {_TABLE} -> sums FLOAT[1, t, heads] where 0 < t * heads",
    "1",
    _sums_build,
    _sums_reference,
    _block_of_sums,
)

CHUNK_SCALED_DOT_KKT = chunk_kernel(
    "chunk_scaled_dot_kkt_fwd_kernel",
    f"{_PACKAGE}.chunk_scaled_dot_kkt.chunk_scaled_dot_kkt_fwd",
    f"k {_KEYS}, beta float[heads, 1, t], g_cumsum FLOAT[heads, 1, t], {_TABLE}"
    f" -> A FLOAT[1, t, heads, 64] {_WHERE}",
    f"2 * {CHUNK} * d",
    _products_build,
    _products_reference,
)

SOLVE_TRIL_16X16 = chunk_kernel(
    "solve_tril_16x16_kernel",
    f"{_PACKAGE}.solve_tril.solve_tril",
    f"A FLOAT[1, t, heads, 64], {_TABLE} -> Ad FLOAT where 0 < t * heads",
    f"{_BLOCK} * {_BLOCK}",
    _inverse_build,
    _inverse_reference(_BLOCK),
    lambda heads: _LARGE_BLOCK,
    launched_by={
        "triton.solve_tril_16x16_kernel": arguments_at(
            cu_seqlens=2, chunk_indices=3, unknown="outputs"
        )
    },
)

MERGE_16X16_TO_64X64_INVERSE = chunk_kernel(
    "merge_16x16_to_64x64_inverse_kernel",
    f"{_PACKAGE}.solve_tril.solve_tril",
    f"A FLOAT[1, t, heads, 64], Ad FLOAT, {_TABLE} -> Ai float[1, t, heads, 64]"
    " where 0 < t * heads",
    f"{CHUNK} * {CHUNK}",
    _inverse_build,
    _inverse_reference(CHUNK),
    launched_by={
        "triton.merge_16x16_to_64x64_inverse_kernel": arguments_at(
            cu_seqlens=3, chunk_indices=4, outputs=2
        )
    },
)

RECOMPUTE_W_U = chunk_kernel(
    "recompute_w_u_fwd_kernel",
    f"{_PACKAGE}.wy_fast.recompute_w_u_fwd",
    f"k {_KEYS}, v {_VALUES}, beta float[1, heads, t], A float[1, t, heads, 64],"
    f" g_cumsum FLOAT[1, heads, t], {_TABLE} -> w T[1, t, heads, d], u {_VALUES}"
    f" {_WHERE}, 0 < d_value",
    f"2 * {CHUNK} * (d + d_value)",
    _values_build,
    _values_reference,
)

CHUNK_GATED_DELTA_RULE_H = chunk_kernel(
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    f"{_PACKAGE}.chunk_delta_h.chunk_gated_delta_rule_fwd_h",
    f"k {_KEYS}, u {_VALUES}, w T[1, t, heads, d], g FLOAT[1, heads, t],"
    " initial_state float[bounds - 1, heads, d, d_value], cu_seqlens INT32[bounds],"
    " chunk_offsets INT32[bounds]"
    f" -> h T[1, chunks, heads, d, d_value], v_new {_VALUES},"
    f" final_state[bounds - 1, heads, d, d_value] {_WHERE}, 0 < d_value",
    STATES_OPERATIONS,
    _states_build,
    states_reference,
    launched_by={
        "triton.chunk_gated_delta_rule_fwd_kernel_h_blockdim64": arguments_at(
            g=4, initial_state=6, cu_seqlens=8, chunk_offsets=9, outputs=(5, 3, 7)
        )
    },
)

CHUNK_FWD_O = chunk_kernel(
    "chunk_fwd_kernel_o",
    f"{_PACKAGE}.chunk_o.chunk_fwd_o",
    f"q {_KEYS}, k {_KEYS}, v {_VALUES}, h float[1, chunks, heads, d, d_value],"
    " g FLOAT[1, heads, t], cu_seqlens INT32[bounds], chunk_offsets integer[bounds]"
    f" -> o {_VALUES} {_WHERE}, 0 < d_value",
    OUTPUT_OPERATIONS,
    _output_build,
    output_reference,
)
