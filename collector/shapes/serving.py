"""The forward passes of a range of serving: what a scheduler makes of so many requests at once."""

from collections.abc import Iterator
from dataclasses import dataclass

from collector.errors import BadInput
from collector.shapes.expression import ceil_div
from collector.shapes.layout import Batch, Phase

_MOST_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class Serving:
    """`concurrency`: numbers of requests that one group of tp ranks serves at once. `input_tokens`
    and `output_tokens` of each. `batched_tokens` at most in one pass; a longer prompt is cut into
    chunks of that. `graph_sizes`: a decode pass is padded to the next of them; none: it is not."""

    concurrency: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    batched_tokens: int
    graph_sizes: tuple[int, ...] = ()


def batches(serving: Serving) -> tuple[Batch, ...]:
    """Each pass once: prefill of as many whole prompts as fit, or of each chunk of one; decode at
    the first token, in the middle and at the last. BadInput for what nobody could serve."""
    sizes = (*serving.concurrency, serving.input_tokens, serving.batched_tokens)
    if min(sizes) < 1 or serving.output_tokens < 1:
        raise BadInput("serving: numbers of at least 1 are wanted")
    if ceil_div(serving.input_tokens, serving.batched_tokens) > _MOST_CHUNKS:
        raise BadInput(f"serving: a prompt of over {_MOST_CHUNKS} chunks")
    found = dict.fromkeys(
        batch
        for requests in serving.concurrency
        for batch in (*_prefill(serving, requests), *_decode(serving, requests))
    )
    return tuple(found)


def _prefill(serving: Serving, requests: int) -> Iterator[Batch]:
    length, most = serving.input_tokens, serving.batched_tokens
    if length <= most:
        yield Batch(Phase.PREFILL, min(requests, most // length), length, length)
        return
    for start in range(0, length, most):
        chunk = min(most, length - start)
        yield Batch(Phase.PREFILL, 1, chunk, start + chunk)


def _decode(serving: Serving, requests: int) -> Iterator[Batch]:
    padded = next((size for size in sorted(serving.graph_sizes) if size >= requests), requests)
    first, last = serving.input_tokens + 1, serving.input_tokens + serving.output_tokens
    for keys in dict.fromkeys((first, (first + last) // 2, last)):
        yield Batch(Phase.DECODE, padded, 1, keys)
