"""The gated delta rule over a prompt, in chunks of 64 tokens: Triton kernels of vLLM-Ascend.

A prompt is processed by seven kernels, each launched by its own function of the package
(`vllm_ascend/ops/triton/fla`): sums of gates within chunks, products of keys, the inverse of a
triangular matrix (two kernels), new values, states, and the output. Profiles show no tensors of
Triton kernels: rows are those of a recording, with the tensors of a launch in its order.

Requests are one after the other, and chunks begin with each of them. Lengths are equal, if so many
chunks result as the row has; a last request that pads the pass may be empty. Else as many of the
first requests as possible decode one token each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.ops.slots import agrees, input_shape, output_shape, output_slot
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

CHUNK = 64
_BLOCK = 16  # of the inverse's first kernel
_LARGE_BLOCK = 1216  # tokens of a program of that kernel
_NUMBERS_OF_SUMS = 1 << 18  # numbers of a program that sums gates
_PACKAGE = "vllm_ascend.ops.triton.fla"
_NEEDS = frozenset({Need.TRITON})
ASSUMES = (
    "requests of equal lengths, behind requests of one token and before an empty one where the "
    "number of chunks requires them"
)


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


def _lengths(case: Case, position: int, tokens: int, blocks: int | None, block: int) -> Shape:
    """Return the lengths of requests, whose ends are the input at a position, that have this number
    of blocks of tokens, or of any number; empty if none fit."""
    requests = (input_shape(case, position) or (0,))[0] - 1
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


def _rows(case: Case, position: int) -> int:
    """Return the number of rows of a table of blocks; 0 if it is none."""
    shape = input_shape(case, position)
    return shape[0] if len(shape) == 2 and shape[1] == 2 else 0


@lru_cache(maxsize=256)
def _of_sums(case: Case) -> Chunks | None:
    gates = input_shape(case, 0)
    if len(gates) != 3 or gates[0] != 1 or not all(gates):
        return None
    block = 1 << max(0, (_NUMBERS_OF_SUMS // (gates[2] * CHUNK) - 1).bit_length())
    lengths = _lengths(case, 1, gates[1], _rows(case, 2), block)
    return Chunks(lengths, heads=gates[2], block=block) if lengths else None


@lru_cache(maxsize=256)
def _of_products(case: Case) -> Chunks | None:
    key, beta, gates = (input_shape(case, i) for i in range(3))
    if len(key) != 4 or len(beta) != 3 or key[0] != 1 or not all((*key, *beta)):
        return None
    sizes = Chunks(_lengths(case, 3, key[1], _rows(case, 4), CHUNK), beta[0], key[2], key[3])
    is_fitting = beta == gates == (sizes.heads, 1, key[1]) and sizes.heads % sizes.key_heads == 0
    return sizes if is_fitting and sizes.lengths else None


def _of_inverse(ends: int, block: int) -> Callable[[Case], Chunks | None]:
    """Return the reading of a row of the inverse, whose ends of requests are at a position."""

    @lru_cache(maxsize=256)
    def read(case: Case) -> Chunks | None:
        matrices = input_shape(case, 0)
        if len(matrices) != 4 or matrices[::3] != (1, CHUNK) or not all(matrices):
            return None
        lengths = _lengths(case, ends, matrices[1], _rows(case, ends + 1), block)
        return Chunks(lengths, heads=matrices[2], block=block) if lengths else None

    return read


@lru_cache(maxsize=256)
def _of_values(case: Case) -> Chunks | None:
    key, value, beta, matrices, gates = (input_shape(case, i) for i in range(5))
    sizes = of_heads(case, key, value, 5, _rows(case, 6))
    if sizes is None:
        return None
    by_head = (1, sizes.heads, sizes.tokens)
    is_fitting = beta == gates == by_head and matrices == (1, *value[1:3], CHUNK)
    return sizes if is_fitting else None


@lru_cache(maxsize=256)
def _of_states(case: Case) -> Chunks | None:
    key, value, weights, gates, state = (input_shape(case, i) for i in range(5))
    sizes = of_heads(case, key, value, 5, (output_shape(case) or (1, None))[1])
    if sizes is None:
        return None
    expected = (*value[:3], sizes.key_size), (1, sizes.heads, sizes.tokens)
    states = len(sizes.lengths), sizes.heads, sizes.key_size, sizes.value_size
    is_fitting = (weights, gates) == expected and state == states
    return sizes if is_fitting and input_shape(case, 6) == (len(sizes.lengths) + 1,) else None


@lru_cache(maxsize=256)
def _of_output(case: Case) -> Chunks | None:
    query, key, value, states, gates = (input_shape(case, i) for i in range(5))
    sizes = of_heads(case, key, value, 5, states[1] if len(states) == 5 else 0)
    if sizes is None or query != key or gates != (1, sizes.heads, sizes.tokens):
        return None
    chunks = 1, len(sizes.chunks), sizes.heads, sizes.key_size, sizes.value_size
    is_fitting = states == chunks and input_shape(case, 6) == (len(sizes.lengths) + 1,)
    return sizes if is_fitting else None


def of_heads(case: Case, key: Shape, value: Shape, ends: int, chunks: int | None) -> Chunks | None:
    """Return the sizes of keys (1,T,Hk,K) and values (1,T,H,V) in this number of chunks; None if
    they do not fit."""
    if len(key) != 4 or len(value) != 4 or key[:2] != value[:2] or key[0] != 1:
        return None
    if not all((*key, *value)) or value[2] % key[2]:
        return None
    lengths = _lengths(case, ends, key[1], chunks, CHUNK)
    return Chunks(lengths, value[2], key[2], key[3], value[3]) if lengths else None


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


def _sums_build(case: Case, make: TensorMaker) -> Call:
    sizes = rules.accepted(_of_sums(case))
    gates = like.uniform((case.inputs or ())[0], make, -0.1, 0.0)
    ends, table = _ends(make, sizes), _index_table(make, sizes)
    return Call(gates, chunk_size=CHUNK, cu_seqlens=ends, block_indices=table, sizes=sizes)


def _sums_reference(torch: Any, gates: Any, *, sizes: Chunks, **others: Any) -> Any:
    out = torch.empty_like(gates, dtype=torch.float32)
    for _, start, stop in sizes.chunks:
        out[:, start:stop] = gates[:, start:stop].float().cumsum(1)
    return out


def call_without_sizes(api: Any, *args: Any, sizes: Chunks, **named: Any) -> Any:
    return api(*args, **named)


def _products_build(case: Case, make: TensorMaker) -> Call:
    """Build the call. Tensors by head are views of those that the kernel gets, so that the function
    copies none."""
    sizes = rules.accepted(_of_products(case))
    beta = like.uniform((case.inputs or ())[1], make, 0.0, 1.0)
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


def _inverse_build(
    read: Callable[[Case], Chunks | None],
) -> Callable[[Case, TensorMaker], Call]:
    def build(case: Case, make: TensorMaker) -> Call:
        named = output_slot(case)
        sizes = rules.accepted(read(case))
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

    return build


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


def _values_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = rules.accepted(_of_values(case)), case.inputs or ()
    beta = like.uniform(slots[2], make, 0.0, 1.0)
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


def _states_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = rules.accepted(_of_states(case)), case.inputs or ()
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


def _output_build(case: Case, make: TensorMaker) -> Call:
    sizes, slots = rules.accepted(_of_output(case)), case.inputs or ()
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


# Operations of each token and head of values, by kernel: twice the products of matrices.
_FLOPS: Mapping[str, Callable[[Chunks], int]] = {
    "sums": lambda sizes: 1,
    "products": lambda sizes: 2 * CHUNK * sizes.key_size,
    "small inverse": lambda sizes: _BLOCK * _BLOCK,
    "inverse": lambda sizes: CHUNK * CHUNK,
    "values": lambda sizes: 2 * CHUNK * (sizes.key_size + sizes.value_size),
    "states": lambda sizes: 4 * sizes.key_size * sizes.value_size,
    "output": lambda sizes: (
        2 * sizes.key_size * sizes.value_size + 2 * CHUNK * (sizes.key_size + sizes.value_size)
    ),
}


def flops_of(read: Callable[[Case], Chunks | None], of: str) -> Callable[[Case], int]:
    """Return the operations of a kernel, of those that `of` names."""

    def flops(case: Case) -> int:
        sizes = rules.accepted(read(case))
        return _FLOPS[of](sizes) * sizes.tokens * sizes.heads

    return flops


def _kernel(
    kernel: str,
    function: str,
    read: Callable[[Case], Chunks | None],
    of: str,
    build: Callable[[Case, TensorMaker], Call],
    reference: Callable[..., Any],
    slots: Sequence[str],
    dtypes: Mapping[int, Sequence[str]],
    text: str,
    outputs: Callable[[Case, Chunks], Sequence[Shape]],
    results: Constraint,
) -> OpSpec:
    """Return the declaration of one kernel, with the dtypes of its slots by position, and the rule
    for those of its outputs."""

    def outputs_fit(case: Case) -> bool:
        shapes = outputs(case, rules.accepted(read(case)))
        return all(agrees(case, position, shape) for position, shape in enumerate(shapes))

    return OpSpec(
        kernel=kernel,
        call=f"{_PACKAGE}.{function}",
        assumes=ASSUMES,
        slots=tuple(slots),
        reference=reference,
        build=build,
        flops=flops_of(read, of),
        npu=NpuCall(run=call_without_sizes, needs=_NEEDS),
        constraints=(
            Constraint(text, lambda case: read(case) is not None),
            *(rules.inputs_are(tuple(names), (i,)) for i, names in dtypes.items()),
            results,
            Constraint("expected outputs of the shapes that the inputs give", outputs_fit),
        ),
    )


_INT = ("INT32",)
_FLOAT = ("FLOAT",)
_REAL = rules.FLOATS
_ENDS = ("cu_seqlens", "chunk_indices")
_OFFSETS = ("cu_seqlens", "chunk_offsets")

CHUNK_LOCAL_CUMSUM = _kernel(
    "chunk_local_cumsum_scalar_kernel",
    "cumsum.chunk_local_cumsum",
    _of_sums,
    "sums",
    _sums_build,
    _sums_reference,
    ("g", *_ENDS),
    {0: _REAL, 1: _INT, 2: _INT},
    "expected gates (1,T,H), ends of requests from 0 on, and an index for each block of tokens",
    lambda case, sizes: (input_shape(case, 0),),
    rules.outputs_are(_FLOAT, (0,)),
)

CHUNK_SCALED_DOT_KKT = _kernel(
    "chunk_scaled_dot_kkt_fwd_kernel",
    "chunk_scaled_dot_kkt.chunk_scaled_dot_kkt_fwd",
    _of_products,
    "products",
    _products_build,
    _products_reference,
    ("k", "beta", "g_cumsum", *_ENDS),
    {0: _REAL, 1: _REAL, 2: _FLOAT, 3: _INT, 4: _INT},
    "expected keys (1,T,Hk,K), beta and gates (H,1,T), ends of requests from 0 on, and an index "
    "for each chunk of 64 tokens",
    lambda case, sizes: ((1, sizes.tokens, sizes.heads, CHUNK),),
    rules.outputs_are(_FLOAT, (0,)),
)

_of_small_inverse = _of_inverse(1, _LARGE_BLOCK)
_of_large_inverse = _of_inverse(2, CHUNK)

SOLVE_TRIL_16X16 = _kernel(
    "solve_tril_16x16_kernel",
    "solve_tril.solve_tril",
    _of_small_inverse,
    "small inverse",
    _inverse_build(_of_small_inverse),
    _inverse_reference(_BLOCK),
    ("A", *_ENDS),
    {0: _FLOAT, 1: _INT, 2: _INT},
    "expected matrices (1,T,H,64), ends of requests from 0 on, and an index for each block of "
    f"{_LARGE_BLOCK} tokens",
    lambda case, sizes: (),
    rules.outputs_are(_FLOAT, (0,)),
)

MERGE_16X16_TO_64X64_INVERSE = _kernel(
    "merge_16x16_to_64x64_inverse_kernel",
    "solve_tril.solve_tril",
    _of_large_inverse,
    "inverse",
    _inverse_build(_of_large_inverse),
    _inverse_reference(CHUNK),
    ("A", "Ad", *_ENDS),
    {0: _FLOAT, 1: _FLOAT, 2: _INT, 3: _INT},
    "expected matrices (1,T,H,64) and inverses of their blocks, ends of requests from 0 on, and an "
    "index for each chunk of 64 tokens",
    lambda case, sizes: (input_shape(case, 0),),
    rules.outputs_are(_REAL, (0,)),
)

RECOMPUTE_W_U = _kernel(
    "recompute_w_u_fwd_kernel",
    "wy_fast.recompute_w_u_fwd",
    _of_values,
    "values",
    _values_build,
    _values_reference,
    ("k", "v", "beta", "A", "g_cumsum", *_ENDS),
    {0: _REAL, 1: _REAL, 2: _REAL, 3: _REAL, 4: _FLOAT, 5: _INT, 6: _INT},
    "expected keys (1,T,Hk,K), values (1,T,H,V), beta and gates (1,H,T), matrices (1,T,H,64), ends "
    "of requests from 0 on, and an index for each chunk of 64 tokens",
    lambda case, sizes: ((*input_shape(case, 1)[:3], sizes.key_size), input_shape(case, 1)),
    rules.one_dtype((0, 1), (0, 1)),
)

CHUNK_GATED_DELTA_RULE_H = _kernel(
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    "chunk_delta_h.chunk_gated_delta_rule_fwd_h",
    _of_states,
    "states",
    _states_build,
    states_reference,
    ("k", "u", "w", "g", "initial_state", *_OFFSETS),
    {0: _REAL, 1: _REAL, 2: _REAL, 3: _FLOAT, 4: _REAL, 5: _INT, 6: _INT},
    "expected keys (1,T,Hk,K), values (1,T,H,V), weights (1,T,H,K), gates (1,H,T), states "
    "(requests,H,K,V), and ends of requests and of their chunks from 0 on",
    lambda case, sizes: (
        (1, len(sizes.chunks), *input_shape(case, 4)[1:]),
        input_shape(case, 1),
        input_shape(case, 4),
    ),
    rules.one_dtype((0, 1, 2), (0, 1)),
)

CHUNK_FWD_O = _kernel(
    "chunk_fwd_kernel_o",
    "chunk_o.chunk_fwd_o",
    _of_output,
    "output",
    _output_build,
    output_reference,
    ("q", "k", "v", "h", "g", *_OFFSETS),
    {0: _REAL, 1: _REAL, 2: _REAL, 3: _REAL, 4: _FLOAT, 5: _INT, 6: ("INT32", "INT64")},
    "expected queries and keys (1,T,Hk,K), values (1,T,H,V), states (1,chunks,H,K,V), gates "
    "(1,H,T), and ends of requests and of their chunks from 0 on",
    lambda case, sizes: (input_shape(case, 2),),
    rules.one_dtype((0, 1, 2), (0,)),
)
