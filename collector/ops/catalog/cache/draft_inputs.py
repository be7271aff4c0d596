"""The inputs of a model that drafts all tokens of a block at once (DFlash): the tokens, positions
and places of its queries, and those of the context it attends to.

A Triton kernel of one program that vLLM-Ascend 0.23 launches once a step, by a method of its
proposer. The method gets objects here that have what it reads of a worker.
"""

from types import SimpleNamespace
from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_NEXT, _POSITIONS, _SLOTS, _TABLE, _STARTS, _LENGTHS, _REJECTED = range(7)
_INPUTS = tuple(range(7))
_SAMPLES = 5  # the output that has a number for each drafted token
_PAGE = 128  # tokens of a page of vLLM-Ascend's attention
_MASK_TOKEN = 1  # in place of the tokens to draft
_MOST_QUERIES = 128  # of a request


def _queries(case: Case) -> int:
    """Return the queries of each request: its last token, and a place for each draft."""
    (samples,) = output_shape(case, _SAMPLES) or (0,)
    return 1 + samples // input_shape(case, _NEXT)[0]


def _edges(case: Case) -> list[int]:
    """Return where the context of each request starts, and the end: equal shares."""
    (requests,), (tokens,) = input_shape(case, _NEXT), input_shape(case, _POSITIONS)
    return [tokens * i // requests for i in range(requests + 1)]


def _build(case: Case, make: TensorMaker) -> Call:
    tokens, positions, slots, table, starts, lengths, *rest = case.inputs or ()
    edges, (rows, pages) = _edges(case), input_shape(case, _TABLE)
    length = pages * _PAGE - _queries(case)
    places = [length - edge + n for n, edge in enumerate(_ends_of(edges))]
    least = min(end - start for start, end in zip(edges, edges[1:], strict=False))
    rejected = rest[0] if rest and rest[0].shape is not None else None
    return Call(
        like.integers(tokens, make, 0, 9),
        make.tensor(places, positions.dtype),
        like.integers(slots, make, 0, rows * pages * _PAGE),
        make.permutation(rows * pages, table.dtype).view(rows, pages),
        make.tensor(edges, starts.dtype),
        like.full(lengths, make, length),
        like.integers(rejected, make, 0, min(least, 2)),
        tuple(like.full(one, make, 0) for one in case.outputs or ()),
    )


def _ends_of(edges: list[int]) -> list[int]:
    """Return the end of the context of each token's request."""
    return [end for start, end in zip(edges, edges[1:], strict=False) for _ in range(end - start)]


def _reference(
    torch: Any,
    tokens: Any,
    positions: Any,
    slots: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    rejected: Any,
    outputs: Any,
) -> Any:
    ids, context_positions, query_positions, context_slots, query_slots, samples = outputs
    requests, count = len(tokens), len(positions)
    query = torch.arange(1 + len(samples) // requests, device=tokens.device)
    skipped = torch.zeros_like(lengths) if rejected is None else rejected
    last = positions[(starts[1:] - skipped - 1).long()]
    place = (lengths - skipped).long().unsqueeze(1) + query
    page = table[: len(lengths)].long().gather(1, place // _PAGE)
    drafted = torch.full((requests, len(query)), _MASK_TOKEN, device=tokens.device)
    drafted[:, 0] = tokens
    numbers = torch.arange(drafted.numel(), device=tokens.device).view(drafted.shape)
    for out, found in (
        (ids, drafted),
        (context_positions, positions),
        (query_positions, last.unsqueeze(1) + 1 + query),
        (context_slots, slots[:count]),
        (query_slots, page * _PAGE + place % _PAGE),
        (samples, numbers[:, 1:]),
    ):
        out[: found.numel()] = found.reshape(-1).to(out.dtype)
    return outputs


def _on_npu(case: Case, make: TensorMaker) -> Call:
    """Build the numbers that the method reads of the host as well."""
    call = _build(case, make)
    numbers = make.tensor(range(input_shape(case, _NEXT)[0] + 1), "INT32").cpu()
    return Call(*call.args, numbers)


class _Worker(SimpleNamespace):
    """An object of the worker: fields that do not matter here are None."""

    def __getattr__(self, name: str) -> None:
        return None


def _run(
    method: Any,
    tokens: Any,
    positions: Any,
    slots: Any,
    table: Any,
    starts: Any,
    lengths: Any,
    rejected: Any,
    outputs: Any,
    numbers: Any,
) -> Any:
    *written, samples = outputs
    ids, context_positions, query_positions, context_slots, query_slots = written
    proposer = _Worker(
        num_speculative_tokens=len(samples) // len(tokens),
        device=tokens.device,
        input_ids=ids,
        _context_positions_buffer=context_positions,
        positions=query_positions,
        _context_slot_mapping_buffer=context_slots,
        _slot_mapping_buffer=query_slots,
        _dflash_hidden_states=[],
        parallel_drafting_token_id=_MASK_TOKEN,
        kernel_block_size=_PAGE,
        arange_dflash=numbers,
        token_arange_np=numbers.numpy(),
    )
    batch = _Worker(
        num_reqs=len(tokens),
        slot_mapping=slots,
        block_table_tensor=table,
        query_start_loc=starts,
        seq_lens=lengths,
        max_seq_len=0,
    )
    found = method(proposer, positions, tokens, positions, [], None, batch, rejected)
    return (*written, found[1])


def _fits(case: Case) -> bool:
    tokens, positions, slots, table, starts, lengths, rejected = (
        input_shape(case, at) for at in _INPUTS
    )
    outputs = [output_shape(case, at) or () for at in range(6)]
    vectors = (tokens, positions, slots, starts, lengths, *outputs)
    if len(table) != 2 or any(len(shape) != 1 for shape in vectors):
        return False
    (requests,), (count,), (samples,) = tokens, positions, outputs[_SAMPLES]
    if not 0 < requests <= count or samples % requests or not samples // requests > 0:
        return False
    queries, share = 1 + samples // requests, -(-count // requests)
    return (
        lengths == tokens
        and starts == (requests + 1,)
        and rejected in ((), tokens)
        and slots[0] >= count
        and queries <= _MOST_QUERIES
        and all(outputs[at][0] >= requests * queries for at in (0, 2, 4))
        and all(outputs[at][0] >= count for at in (1, 3))
        and table[0] >= requests
        and share + queries <= table[1] * _PAGE
    )


def _traffic(case: Case) -> int:
    """Return the bytes of the context, copied, and of three numbers and a page of each query."""
    (count,), (requests,) = input_shape(case, _POSITIONS), input_shape(case, _NEXT)
    inputs, outputs = case.inputs or (), case.outputs or ()
    width = [rules.accepted(slot.known_dtype).bytes_of(1) for slot in inputs[:4]]
    read = sum(inputs[at].size_bytes for at in (_NEXT, _STARTS, _LENGTHS))
    rejected = sum(slot.size_bytes for slot in inputs[_REJECTED:])
    context = count * (width[_POSITIONS] + width[_SLOTS] + 2 * 4)
    queries = requests * _queries(case) * (3 * 4 + width[_TABLE])
    return read + rejected + context + queries + outputs[_SAMPLES].size_bytes


DRAFT_INPUTS = OpSpec(
    kernel="copy_and_expand_dflash_inputs_kernel_single_grid",
    call="vllm_ascend.spec_decode.dflash_proposer.AscendDflashProposer.set_inputs_first_pass",
    assumes="as many tokens of context for each request, at the ends of its pages of 128 tokens; "
    "at most one draft of each is rejected",
    slots=(
        *("next_token_ids", "target_positions", "context_slot_mapping", "block_table"),
        *("query_start_loc", "seq_lens", "num_rejected_tokens"),
    ),
    optional=frozenset({_REJECTED}),
    reference=_reference,
    build=_build,
    traffic=_traffic,
    moves_data=True,
    npu=NpuCall(run=_run, build=_on_npu, needs=frozenset({Need.TRITON})),
    constraints=(
        Constraint(
            "expected next tokens (R), positions (T), places (T or more), a table (R or more, "
            "pages) that holds them, starts (R+1), lengths (R), rejected drafts (R) or none; and "
            "tokens, positions and places of queries and context, and drafts of each request",
            _fits,
        ),
        rules.inputs_are(rules.INTEGERS, _INPUTS),
        rules.outputs_are(("INT32",), tuple(range(6))),
    ),
)
