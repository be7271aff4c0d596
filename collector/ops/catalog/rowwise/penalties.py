"""Penalties of sampled tokens: how often each token occurred, and logits that are lowered by it.

Triton kernels of vLLM-Ascend 0.18 and 0.23. Profiles show no tensors of them: rows are those of a
recording.
"""

from typing import Any

from collector.model.case import Case
from collector.ops import rules
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.slots import elements, output_shape
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_LOGITS, _PROMPT, _OUTPUT, _COUNTS, _REPETITION, _FREQUENCY, _PRESENCE = range(7)
_MANY = 3  # times that a token occurred, at most


def _penalties_build(case: Case, make: TensorMaker) -> Call:
    """Build penalties near those that change nothing: launches repeat on the same logits."""
    slots = case.inputs or ()
    counts = like.integers(slots[_COUNTS], make, 0, _MANY + 1)
    return Call(
        like.normal(slots[_LOGITS], make),
        like.normal(slots[_PROMPT], make),
        counts > 0,
        counts,
        like.uniform_like(slots[_REPETITION], make, 1.0, 1.001),
        *(like.uniform_like(slots[at], make, 0.0, 0.001) for at in (_FREQUENCY, _PRESENCE)),
    )


def _penalties_reference(
    torch: Any,
    logits: Any,
    prompt: Any,
    output: Any,
    counts: Any,
    repetition: Any,
    frequency: Any,
    presence: Any,
) -> Any:
    factor = torch.where(prompt | output, repetition.unsqueeze(1), 1.0)
    wide = logits.float()
    wide = torch.where(wide > 0, wide / factor, wide * factor)
    wide = wide - frequency.unsqueeze(1) * counts - presence.unsqueeze(1) * output
    return logits.copy_(wide)


def _penalties_run(api: Any, logits: Any, *args: Any) -> Any:
    api(logits, *args)
    return logits


APPLY_ALL_PENALTIES = OpSpec(
    kernel="apply_all_penalties_kernel",
    call="vllm_ascend.ops.triton.penalty._apply_all_penalties_triton",
    signature="logits T:float[requests, v], prompt_mask BOOL[requests, v],"
    " output_mask BOOL[requests, v], output_bin_counts INT32[requests, v],"
    " repetition_penalties FLOAT[requests], frequency_penalties FLOAT[requests],"
    " presence_penalties FLOAT[requests] -> logits T[requests, v] where requests * v > 0",
    reference=_penalties_reference,
    build=_penalties_build,
    operations="6 * requests * v",  # a quotient, three products and two differences
    npu=NpuCall(run=_penalties_run, needs=frozenset({Need.TRITON})),
)


def _counts_build(case: Case, make: TensorMaker) -> Call:
    (tokens,) = case.inputs or ()
    rows, vocabulary = rules.accepted(output_shape(case))
    return Call(like.integers(tokens, make, 0, vocabulary), vocabulary, rows)


def _counts_reference(torch: Any, tokens: Any, vocabulary: int, rows: int) -> Any:
    counts = torch.zeros((rows, vocabulary), dtype=torch.int32, device=tokens.device)
    return counts.scatter_add_(1, tokens.long(), torch.ones_like(tokens, dtype=torch.int32))


# The function makes the zeros before, and compares the counts behind: companions.
TOKEN_BIN_COUNTS = OpSpec(
    kernel="token_bin_counts_and_mask_kernel",
    call="vllm_ascend.ops.triton.bincount.get_token_bin_counts_and_mask_triton",
    assumes="tokens of the whole vocabulary",
    signature="tokens integer[requests, length] -> counts INT32[requests, v]!"
    " where requests * length > 0",
    reference=_counts_reference,
    build=_counts_build,
    operations="requests * length",
    # each token is read, and its count read and written: other counts are not touched
    traffic=lambda case: sum(
        slot.size_bytes + 2 * 4 * elements(slot.shape) for slot in case.inputs or ()
    ),
    npu=NpuCall(
        run=lambda api, *args: api(*args)[0],
        needs=frozenset({Need.TRITON, Need.ENGINE_CONFIG}),
    ),
    launched_by={"triton.token_bin_counts_and_mask_kernel": arguments_at(outputs=6)},
)
