"""The forward passes of a range of serving: what a scheduler makes of so many requests at once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from collector.errors import BadInput
from collector.shapes.expression import ceil_div
from collector.shapes.layout import Batch, Phase

_MOST_CHUNKS = 4096
_MOST_REQUESTS = 1 << 20  # of all passes: each is a number in the rows of its attention


@dataclass(frozen=True, slots=True)
class Serving:
    """`concurrency`: numbers of requests that one group of tp ranks serves at once. `input_tokens`
    and `output_tokens` of each. `batched_tokens` at most in one pass; a longer prompt is cut into
    chunks of that. `graph_sizes`: a decode pass is padded to the next of them; none: it is not.
    `phases`: what runs in this deployment, which may leave the other to another one."""

    concurrency: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    batched_tokens: int
    graph_sizes: tuple[int, ...] = ()
    phases: tuple[Phase, ...] = tuple(Phase)


def passes(serving: Serving) -> dict[Batch, int]:
    """Each forward pass, and how many of it serve every number of requests once, all at the same
    time: prefills of as many whole prompts as fit, of those that are left, or of each chunk of
    one; and for each token of an answer but its first a decode, told by three of them: at the
    first, in the middle and at the last. BadInput for what nobody could serve."""
    sizes = (*serving.concurrency, serving.input_tokens, serving.batched_tokens)
    if min(sizes) < 1 or serving.output_tokens < 1:
        raise BadInput("serving: numbers of at least 1 are wanted")
    if ceil_div(serving.input_tokens, serving.batched_tokens) > _MOST_CHUNKS:
        raise BadInput(f"serving: a prompt of over {_MOST_CHUNKS} chunks")
    found: Counter[Batch] = Counter()
    for requests in dict.fromkeys(serving.concurrency):
        for batch, times in (*_prefill(serving, requests), *_decode(serving, requests)):
            if batch.phase in serving.phases:
                found[batch] += times
    if not found:
        raise BadInput("serving: no pass is left: an answer of one token is all of the prefill's")
    if sum(batch.requests for batch in found) > _MOST_REQUESTS:
        raise BadInput(
            f"serving: passes of {_MOST_REQUESTS} requests in all, at most, are wanted: fewer or "
            "smaller numbers of concurrency"
        )
    return dict(found)


def _prefill(serving: Serving, requests: int) -> Iterator[tuple[Batch, int]]:
    length, most = serving.input_tokens, serving.batched_tokens
    if length <= most:
        whole, left = divmod(requests, min(requests, most // length))
        if whole:
            yield Batch(Phase.PREFILL, min(requests, most // length), length, length), whole
        if left:
            yield Batch(Phase.PREFILL, left, length, length), 1
        return
    for start in range(0, length, most):
        chunk = min(most, length - start)
        yield Batch(Phase.PREFILL, 1, chunk, start + chunk), requests


def _decode(serving: Serving, requests: int) -> Iterator[tuple[Batch, int]]:
    """The prefill gives the first token, so that an answer of n has n - 1 decodes."""
    padded = next((size for size in sorted(serving.graph_sizes) if size >= requests), requests)
    count = serving.output_tokens - 1
    if not count:
        return
    first, last = serving.input_tokens + 1, serving.input_tokens + count
    ends = max(1, count // 4)
    shares = (ends, count - 2 * ends, min(ends, count - ends))
    for keys, times in zip((first, (first + last) // 2, last), shares, strict=True):
        if times > 0:
            yield Batch(Phase.DECODE, padded, 1, keys, padding=padded - requests), times
