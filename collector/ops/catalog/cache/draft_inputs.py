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
from collector.ops.signature import Sizes, parse_signature
from collector.ops.slots import output_slot
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_PAGE = 128  # tokens of a page of vLLM-Ascend's attention
_MASK_TOKEN = 1  # in place of the tokens to draft
_MOST_QUERIES = 128  # of a request


_READ = parse_signature(
    """next_token_ids integer[requests], target_positions integer[t],
    context_slot_mapping integer[slots], block_table integer[rows, width],
    query_start_loc integer[requests + 1], seq_lens integer[requests],
    num_rejected_tokens integer[requests]?
    -> input_ids INT32[ids]!, context_positions INT32[places]!, positions INT32[queries]!,
    context_slots INT32[context]!, slots INT32[query_slots]!, samples INT32[drafts]!
    where 0 < requests <= t <= slots, requests <= rows, 0 < drafts, drafts % requests == 0,"""
    # the queries of each request are its last token, and a place for each draft
    f" drafts + requests <= {_MOST_QUERIES} * requests,"
    " drafts + requests <= min(ids, queries, query_slots), t <= min(places, context),"
    f" ceil_div(t, requests) + 1 + drafts // requests <= width * {_PAGE}"
)


def _edges(sizes: Sizes) -> list[int]:
    """Return where the context of each request starts, and the end: equal shares."""
    requests = sizes["requests"]
    return [sizes["t"] * i // requests for i in range(requests + 1)]


def _build(case: Case, make: TensorMaker) -> Call:
    tokens, positions, slots, table, starts, lengths, *rest = case.inputs or ()
    sizes = _READ.sizes(case)
    edges, rows, width = _edges(sizes), sizes["rows"], sizes["width"]
    length = width * _PAGE - 1 - sizes["drafts"] // sizes["requests"]
    places = [length - edge + n for n, edge in enumerate(_ends_of(edges))]
    least = min(end - start for start, end in zip(edges, edges[1:], strict=False))
    rejected = rest[0] if rest and rest[0].shape is not None else None
    return Call(
        like.integers(tokens, make, 0, 9),
        make.tensor(places, positions.dtype),
        like.integers(slots, make, 0, rows * width * _PAGE),
        make.permutation(rows * width, table.dtype).view(rows, width),
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
    numbers = make.tensor(range(_READ.sizes(case)["requests"] + 1), "INT32").cpu()
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


def _traffic(case: Case) -> int:
    """Return the bytes of the context, copied, and of three numbers and a page of each query."""
    sizes = _READ.sizes(case)
    tokens, positions, slots, table, *read = case.inputs or ()
    width = [rules.accepted(slot.known_dtype).bytes_of(1) for slot in (positions, slots, table)]
    samples = rules.accepted(output_slot(case, 5))
    context = sizes["t"] * (width[0] + width[1] + 2 * 4)
    queries = (sizes["requests"] + sizes["drafts"]) * (3 * 4 + width[2])
    whole = sum(slot.size_bytes for slot in (tokens, *read, samples))
    return whole + context + queries


DRAFT_INPUTS = OpSpec(
    kernel="copy_and_expand_dflash_inputs_kernel_single_grid",
    call="vllm_ascend.spec_decode.dflash_proposer.AscendDflashProposer.set_inputs_first_pass",
    assumes="as many tokens of context for each request, at the ends of its pages of 128 tokens; "
    "at most one draft of each is rejected",
    signature=_READ.text,
    reference=_reference,
    build=_build,
    traffic=_traffic,
    moves_data=True,
    npu=NpuCall(run=_run, build=_on_npu, needs=frozenset({Need.TRITON})),
)
