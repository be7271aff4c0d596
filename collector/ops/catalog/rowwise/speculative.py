"""Speculative decoding: drafts that are accepted, and what replaces those that are not.

Triton kernels of vLLM-Ascend 0.18 and 0.23, whose engines sample drafts without probabilities.
Profiles show no tensors of them: rows are those of a recording. The functions launch other kernels
too, which are companions. Outputs must not depend on random numbers that a function draws itself:
every draft has the whole probability, or none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from collector.model.case import Case, Slot
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.tensors import cumulative_ends
from collector.ops.slots import elements, input_shape, output_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_CALL = "vllm_ascend.sample.rejection_sampler"
_NEEDS = frozenset({Need.TRITON, Need.ENGINE_CONFIG})
_MOST_DRAFTS = 128  # of a request
_VOCABULARY = 32_000  # of drafts whose row has no probabilities
_CERTAIN = 200.0  # the logit next to zeros whose probability is 1
_LEAST_OF_BLOCKS = 3  # drafts that are verified as a block
_NOTHING = -1  # what the function fills its output with

_ACCEPTED = "every draft is accepted; the first requests have the most drafts"


def _drafts_of_requests(tokens: int, requests: int, most: int) -> list[int]:
    """Return the drafts of each request; the first have as many as possible."""
    return [max(min(most, tokens - most * i), 0) for i in range(requests)]


def _shared_drafts(requests: int, tokens: int) -> list[int]:
    """Return the drafts of each request of a row that does not have their maximum."""
    return _drafts_of_requests(tokens, requests, -(-tokens // requests))


def _listed_drafts(case: Case, drafts_at: int) -> list[int]:
    """Return the drafts of each request of a row whose output has a column for each, and one."""
    requests, columns = rules.accepted(output_shape(case))
    return _drafts_of_requests(input_shape(case, drafts_at)[0], requests, columns - 1)


def _ends(counts: list[int], dtype: str, make: TensorMaker) -> Any:
    return make.tensor(cumulative_ends(counts), dtype)


def _places(torch: Any, ends: Any, tokens: int) -> tuple[Any, Any]:
    """Return the request of each token, and its position there."""
    token = torch.arange(tokens, device=ends.device)
    requests = torch.searchsorted(ends.long(), token, right=True)
    starts = torch.nn.functional.pad(ends.long(), (1, 0))
    return requests, token - starts[requests]


def _chosen(
    torch: Any, most: int, ends: Any, accepted: Any, tokens: Any, bonus: Any, skipped: Any
) -> Any:
    """Return the tokens up to the first draft that is not accepted, and a bonus where all are;
    nothing for requests that are skipped."""
    requests, positions = _places(torch, ends, len(tokens))
    first = torch.full_like(ends, most, dtype=torch.int64)
    first = first.scatter_reduce(0, requests, torch.where(accepted, most, positions), "amin")
    found = torch.full((len(ends), most + 2), _NOTHING, dtype=torch.int32, device=ends.device)
    is_written = (positions <= first[requests]) & ~skipped[requests]
    found[requests, torch.where(is_written, positions, most + 1)] = tokens.to(torch.int32)
    counts = torch.diff(ends.long(), prepend=torch.zeros_like(ends[:1]).long())
    last = torch.where((first == most) & ~skipped, counts, most + 1)
    found.scatter_(1, last.unsqueeze(1), bonus.view(-1, 1).to(torch.int32))
    return found[:, : most + 1]


# Drafts fill the columns of the output but one, in one request at least.
_FILLED = f"1 <= columns - 1 <= t <= requests * (columns - 1), columns - 1 <= {_MOST_DRAFTS}"
# Each request can have a token, and none has too many.
_SHARED = f"0 < requests <= t <= {_MOST_DRAFTS} * requests"


# A number of each request for each of its tokens.


def _expand_build(case: Case, make: TensorMaker) -> Call:
    x, ends = case.inputs or ()
    (tokens,) = rules.accepted(output_shape(case))
    counts = _shared_drafts(input_shape(case, 0)[0], tokens)
    return Call(like.integers(x, make, 1, 9), _ends(counts, ends.dtype, make), tokens)


def _expand_reference(torch: Any, x: Any, ends: Any, tokens: int) -> Any:
    return x[_places(torch, ends, tokens)[0]]


EXPAND = OpSpec(
    kernel="expand_kernel",
    call=f"{_CALL}.expand_batch_to_tokens",
    assumes="equal numbers of tokens for each request",
    signature=f"x T[requests], cu_num_tokens integer[requests] -> y T[t]! where {_SHARED}",
    reference=_expand_reference,
    build=_expand_build,
    moves_data=True,
    npu=NpuCall(needs=frozenset({Need.TRITON})),
)


# Greedy sampling: a draft is accepted if it is the most likely token.


def _greedy_call(
    case: Case, make: TensorMaker, drafts_at: int, ends_dtype: str, greedy: Sequence[Slot] = ()
) -> Call:
    """Build drafts and most likely tokens of 0, the one token of the logits that an NPU gets; the
    slots of both and of the bonus follow each other."""
    drafts, argmax, bonus = (case.inputs or ())[drafts_at : drafts_at + 3]
    counts = _listed_drafts(case, drafts_at)
    return Call(
        counts,
        _ends(counts, ends_dtype, make),
        like.full(drafts, make, 0),
        like.full(argmax, make, 0),
        like.integers(bonus, make, 0, _VOCABULARY),
        *(like.full(one, make, 1) for one in greedy if one.shape is not None),
    )


def _greedy_build(case: Case, make: TensorMaker) -> Call:
    ends, _, _, _, *greedy = case.inputs or ()
    return _greedy_call(case, make, 1, ends.dtype, greedy)


def _greedy_reference(
    torch: Any, counts: Any, ends: Any, drafts: Any, argmax: Any, bonus: Any, greedy: Any = None
) -> Any:
    is_greedy = torch.ones_like(bonus.view(-1), dtype=torch.bool) if greedy is None else greedy
    return _chosen(torch, max(counts), ends, drafts == argmax, argmax, bonus, ~is_greedy)


def _one_build(case: Case, make: TensorMaker) -> Call:
    return _greedy_call(case, make, 0, (case.inputs or ())[0].dtype)


def _with_logits(
    build: Callable[[Case, TensorMaker], Call],
) -> Callable[[Case, TensorMaker], Call]:
    """Return the arguments of an NPU: logits of one token, and temperatures of 0."""

    def built(case: Case, make: TensorMaker) -> Call:
        counts, ends, drafts, _, bonus, *greedy = build(case, make).args
        zeros = make.full((len(counts),), "FLOAT", 0.0) if greedy else None
        logits = make.full((sum(counts), 1), "FLOAT", 0.0)
        return Call(counts, ends, drafts, logits, bonus, zeros)

    return built


def _rejection_run(
    api: Any,
    counts: Any,
    ends: Any,
    drafts: Any,
    logits: Any,
    bonus: Any,
    temperature: Any,
    *,
    is_random: bool,
) -> Any:
    sampling = SimpleNamespace(  # what the function reads of an engine's sampling metadata
        all_greedy=temperature is None,
        all_random=is_random,
        temperature=temperature,
        generators={},
    )
    return api(drafts, counts, max(counts), ends, None, logits, bonus, sampling)


_GREEDY_RUN = partial(_rejection_run, is_random=False)
_RANDOM_RUN = partial(_rejection_run, is_random=True)


def _block_run(api: Any, *args: Any) -> Any:
    """Run with the engine's option of block verification, which the function reads in each call."""
    options = api.__globals__["get_ascend_config"]().rejection_sampler_config
    usual, options.enable_block_verify = options.enable_block_verify, True
    try:
        return _RANDOM_RUN(api, *args)
    finally:
        options.enable_block_verify = usual


# One draft of each request, all greedy, is another kernel's.
REJECTION_GREEDY = OpSpec(
    kernel="rejection_greedy_sample_triton",
    call=f"{_CALL}.rejection_sample",
    assumes=_ACCEPTED,
    signature="cu_num_draft_tokens integer[requests], draft_token_ids integer[t],"
    " target_argmax integer[t], bonus integer[requests]|[requests, 1], is_greedy[requests]?"
    f" -> tokens INT32[requests, columns]! where {_FILLED},"
    " has_is_greedy or t != requests or columns > 2",
    reference=_greedy_reference,
    build=_greedy_build,
    npu=NpuCall(run=_GREEDY_RUN, build=_with_logits(_greedy_build), needs=_NEEDS),
    launched_by={
        "triton.rejection_greedy_sample_triton": arguments_at(
            cu_num_draft_tokens=1,
            draft_token_ids=2,
            target_argmax=3,
            bonus=4,
            is_greedy=5,
            outputs=0,
        )
    },
)

REJECTION_GREEDY_OF_ONE = OpSpec(
    kernel="rejection_greedy_sample_spec_len_1_triton",
    call=f"{_CALL}.rejection_sample",
    assumes=_ACCEPTED,
    signature="draft_token_ids integer[requests], target_argmax integer[requests],"
    " bonus integer[requests]|[requests, 1] -> tokens INT32[requests, 2]! where requests > 0",
    reference=_greedy_reference,
    build=_one_build,
    npu=NpuCall(run=_GREEDY_RUN, build=_with_logits(_one_build), needs=_NEEDS),
    launched_by={
        "triton.rejection_greedy_sample_spec_len_1_triton": arguments_at(
            draft_token_ids=1, target_argmax=2, bonus=3, outputs=0
        )
    },
)


# Random sampling: a draft is accepted with the probability of its token.


def _certain(case: Case, make: TensorMaker, at: int, moved: int, value: float) -> tuple[Any, Any]:
    """Return drafts, and the value for the token that many places behind each draft, else 0."""
    shape = input_shape(case, at)
    slots = case.inputs or ()
    drafts = make.integers(shape[:1], slots[1].dtype, 0, shape[1] - moved)
    numbers = make.full(shape, slots[at].dtype, 0.0)
    return drafts, numbers.scatter_(1, (drafts + moved).long().unsqueeze(1), value)


def _random_build(case: Case, make: TensorMaker, certain: float = 1.0) -> Call:
    ends, _, probabilities, bonus, recovered, uniform, greedy = case.inputs or ()
    counts, vocabulary = _listed_drafts(case, 1), (probabilities.shape or ())[1]
    drafts, target = _certain(case, make, 2, 0, certain)
    return Call(
        counts,
        _ends(counts, ends.dtype, make),
        drafts,
        target,
        like.integers(bonus, make, 0, vocabulary),
        like.integers(recovered, make, 0, vocabulary),
        like.uniform_like(uniform, make, 0.0, 1.0),
        like.full(greedy, make, 0),
    )


def _random_reference(
    torch: Any,
    counts: Any,
    ends: Any,
    drafts: Any,
    probabilities: Any,
    bonus: Any,
    recovered: Any,
    uniform: Any,
    greedy: Any,
) -> Any:
    likely = probabilities.gather(1, drafts.long().unsqueeze(1)).squeeze(1) >= uniform
    tokens = torch.where(likely, drafts, recovered)
    return _chosen(torch, max(counts), ends, likely, tokens, bonus, greedy)


def _random_on_npu(case: Case, make: TensorMaker) -> Call:
    counts, ends, drafts, logits, bonus, *_ = _random_build(case, make, _CERTAIN).args
    return Call(counts, ends, drafts, logits, bonus, make.full((len(counts),), "FLOAT", 1.0))


def _random_traffic(case: Case) -> int:
    """Return the bytes of a launch, which reads the probability of each draft alone."""
    return sum(
        4 * elements(slot.shape and slot.shape[:1]) if at == 2 else slot.size_bytes
        for at, slot in enumerate((*(case.inputs or ()), *(case.outputs or ())))
    )


_RANDOM = (
    "cu_num_draft_tokens integer[requests], draft_token_ids integer[t], target_probs FLOAT[t, v],"
    " bonus integer[requests]|[requests, 1], recovered_token_ids integer[t],"
    " uniform_probs FLOAT[t], is_greedy BOOL[requests]"
    f" -> tokens INT32[requests, columns]! where {_FILLED}, v > 0"
)

REJECTION_RANDOM = OpSpec(
    kernel="rejection_random_sample_kernel",
    call=f"{_CALL}.rejection_sample",
    assumes=_ACCEPTED,
    signature=_RANDOM,
    reference=_random_reference,
    build=_random_build,
    traffic=_random_traffic,
    npu=NpuCall(run=_RANDOM_RUN, build=_random_on_npu, needs=_NEEDS),
)


# Block verification: a draft is accepted by the product of the probabilities up to it, also after
# others that are not.


def _block_reference(
    torch: Any,
    counts: Any,
    ends: Any,
    drafts: Any,
    probabilities: Any,
    bonus: Any,
    recovered: Any,
    uniform: Any,
    greedy: Any,
) -> Any:
    requests, positions = _places(torch, ends, len(drafts))
    own = probabilities.gather(1, drafts.long().unsqueeze(1)).squeeze(1)
    shape, at = (len(ends), max(counts)), (requests, positions)
    grid = torch.zeros(shape, dtype=own.dtype, device=own.device)
    likely = grid.index_put(at, own).cumprod(1) >= grid.index_put(at, uniform).cumprod(1)
    counted = likely[at] * (positions + 1)
    last = torch.zeros_like(ends, dtype=torch.int64).scatter_reduce(0, requests, counted, "amax")
    accepted = positions < last[requests]
    tokens = torch.where(accepted, drafts, recovered)
    return _chosen(torch, max(counts), ends, accepted, tokens, bonus, greedy)


REJECTION_BLOCK = OpSpec(
    kernel="rejection_random_sample_block_verify_kernel",
    call=f"{_CALL}.rejection_sample",
    assumes=_ACCEPTED,
    # fewer drafts of a request are another kernel's
    signature=f"{_RANDOM}, columns > {_LEAST_OF_BLOCKS}",
    reference=_block_reference,
    build=_random_build,
    traffic=_random_traffic,
    npu=NpuCall(
        run=_block_run, build=_random_on_npu, needs=_NEEDS | frozenset({Need.BLOCK_VERIFICATION})
    ),
)


# The token in place of each draft that is not accepted: of probabilities without the draft.


def _recovered_build(case: Case, make: TensorMaker) -> Call:
    ends, _, _, q = case.inputs or ()
    counts = _shared_drafts(input_shape(case, 0)[0], input_shape(case, 1)[0])
    drafts, target = _certain(case, make, 2, 1, 1.0)
    numbers = _ends(counts, ends.dtype, make), drafts, target
    return Call(counts, *numbers, like.uniform_like(q, make, 0.5, 1.5))


def _recovered_reference(
    torch: Any, counts: Any, ends: Any, drafts: Any, probabilities: Any, q: Any
) -> Any:
    requests, _ = _places(torch, ends, len(drafts))
    others = probabilities.scatter(1, drafts.long().unsqueeze(1), 0.0)
    return (others / q[requests]).argmax(-1).to(drafts.dtype)


def _recovered_run(
    api: Any, counts: Any, ends: Any, drafts: Any, probabilities: Any, q: Any
) -> Any:
    """The function draws q itself."""
    sampling = SimpleNamespace(generators={})
    given = max(counts), counts, ends, drafts, None, probabilities, sampling
    return api(*given, probabilities.device)


SAMPLE_RECOVERED = OpSpec(
    kernel="sample_recovered_tokens_kernel",
    call=f"{_CALL}.sample_recovered_tokens",
    assumes="equal numbers of drafts for each request",
    signature="cu_num_draft_tokens integer[requests], draft_token_ids T:integer[t],"
    f" target_probs FLOAT[t, v], q FLOAT[requests, v] -> tokens T[t] where {_SHARED}, v > 1",
    reference=_recovered_reference,
    build=_recovered_build,
    operations="t * v",
    npu=NpuCall(run=_recovered_run, needs=frozenset({Need.TRITON})),
)


# The last accepted token of each request, and the number of drafts that are not accepted.


def _padded_build(case: Case, make: TensorMaker) -> Call:
    """Build one draft for each request, accepted or not."""
    ends, valid, starts = case.inputs or ()
    (requests,) = ends.shape or ()
    return Call(
        make.tensor(range(1, requests + 1), ends.dtype),
        like.integers(valid, make, 1, 3),
        make.tensor(range(0, 2 * requests + 1, 2), starts.dtype),
    )


def _padded_reference(torch: Any, ends: Any, valid: Any, starts: Any) -> Any:
    drafts = torch.diff(ends, prepend=torch.zeros_like(ends[:1]))
    rejected = torch.where(drafts > 0, drafts + 1 - valid, torch.zeros_like(drafts))
    return (starts[1:] - 1 - rejected).int(), rejected.int()


def _padded_on_npu(case: Case, make: TensorMaker) -> Call:
    """Build what the method reads of the worker as well, on the host."""
    ends, valid, starts = _padded_build(case, make).args
    return Call(ends, valid, starts, starts.cpu())


class _Worker(SimpleNamespace):
    """An object of the worker: fields that do not matter here are None."""

    def __getattr__(self, name: str) -> None:
        return None


def _padded_run(method: Any, ends: Any, valid: Any, starts: Any, on_host: Any) -> Any:
    proposer = _Worker(arange=starts, runner=_Worker(), pcp_size=1)
    tokens = _Worker(num_reqs=len(ends), query_start_loc=starts, query_start_loc_cpu=on_host)
    return method(proposer, tokens, _Worker(cu_num_draft_tokens=ends), valid)[2:]


PREPARE_INPUTS_PADDED = OpSpec(
    kernel="prepare_inputs_padded_kernel",
    call="vllm_ascend.spec_decode.eagle_proposer.AscendEagleProposer.prepare_inputs_padded",
    assumes="one draft of each request",
    signature="cu_num_draft_tokens integer[requests], valid_sampled_tokens_count integer[requests],"
    " query_start_loc integer[requests + 1]"
    " -> last_tokens INT32[requests], rejected INT32[requests] where requests > 0",
    reference=_padded_reference,
    build=_padded_build,
    npu=NpuCall(run=_padded_run, build=_padded_on_npu, needs=frozenset({Need.TRITON})),
)
