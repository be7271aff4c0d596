"""The forward passes of a range of serving: what a scheduler makes of so many requests at once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collector.errors import BadInput
from collector.shapes.batch import Batch, Phase
from collector.shapes.expression import ceil_div

_MOST_CHUNKS = 4096
_MOST_REQUESTS = 1 << 20  # of all passes: each is a number in the rows of its attention


@dataclass(frozen=True, slots=True)
class Serving:
    """`concurrency`: numbers of requests that one group of tp ranks serves at once. `input_tokens`
    and `output_tokens` of each. `batched_tokens` at most in one pass; a longer prompt is cut into
    chunks of that. `graph_sizes`: a decode pass is padded to the next of them; none: it is not.
    `phases`: what runs in this deployment, which may leave the other to another one. `mixed`:
    requests come one after the other, and each prompt passes beside the answers of all others.
    `predicted` tokens are predicted after each (MTP), and all of them right. `skew` and
    `imbalance` are those of batches."""

    concurrency: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    batched_tokens: int
    graph_sizes: tuple[int, ...] = ()
    phases: tuple[Phase, ...] = tuple(Phase)
    mixed: bool = False
    predicted: int = 0
    skew: int = 0
    imbalance: int = 0

    @property
    def followed_tokens(self) -> int:
        """Of an answer those that a decode gives: the first is the prefill's."""
        return self.output_tokens - 1


def passes(serving: Serving) -> dict[Batch, int]:
    """Each forward pass, and how many of it serve every number of requests once, all at the same
    time: prefills of as many whole prompts as fit, of those that are left, or of each chunk of
    one; and for each token of an answer but its first a decode, told by three of them: at the
    first, in the middle and at the last. Where they are mixed, what passes beside prompts is no
    decode any more. BadInput for impossible settings."""
    sizes = (*serving.concurrency, serving.input_tokens, serving.batched_tokens)
    if min(sizes) < 1 or serving.output_tokens < 1:
        raise BadInput("serving: expected numbers of at least 1")
    if ceil_div(serving.input_tokens, serving.batched_tokens) > _MOST_CHUNKS:
        raise BadInput(f"serving: expected a prompt of at most {_MOST_CHUNKS} chunks")
    if serving.mixed and serving.phases != tuple(Phase):
        raise BadInput("serving: mixed prompts and decodes require both phases")
    if serving.predicted < 0 or (serving.predicted and serving.mixed):
        raise BadInput("serving: predicted tokens require separate passes for prompts and decodes")
    found: Counter[Batch] = Counter()
    for requests in dict.fromkeys(serving.concurrency):
        followed = _followed(serving, requests) if serving.mixed else 0
        prompts = tuple(_mixed(serving, requests, followed) or _prefill(serving, requests))
        beside = followed * len(prompts)  # of each answer, while the others' prompts pass
        for batch, times in (*prompts, *_decode(serving, requests, beside)):
            if batch.phase in serving.phases:
                uneven = replace(
                    batch,
                    skew=serving.skew,
                    imbalance=serving.imbalance,
                    decodes_alone=serving.phases == (Phase.DECODE,),
                )
                for one, repeats in _predicting(uneven, serving.predicted):
                    found[one] += times * repeats
    if not found:
        raise BadInput("serving: no decode pass: the prefill produces the only output token")
    if sum(batch.requests + batch.followed for batch in found) > _MOST_REQUESTS:
        raise BadInput(
            f"serving: expected passes of at most {_MOST_REQUESTS} requests in total: use fewer or "
            "smaller concurrency values"
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


def _followed(serving: Serving, requests: int) -> int:
    """How many answers pass beside each prompt: those of all other requests, as far as a pass has
    room for them and they have as many tokens."""
    followed = min(requests - 1, serving.batched_tokens - 1)
    chunks = ceil_div(serving.input_tokens, serving.batched_tokens - followed)
    return min(followed, serving.followed_tokens // chunks)


def _mixed(serving: Serving, requests: int, followed: int) -> list[tuple[Batch, int]]:
    """Each chunk of one prompt, beside answers in the middle of theirs; none where no answers are
    there."""
    most, length = serving.batched_tokens - followed, serving.input_tokens
    keys = length + max(1, serving.followed_tokens // 2)
    chunks = ((start, min(most, length - start)) for start in range(0, length, most))
    return [
        (Batch(Phase.PREFILL, 1, chunk, start + chunk, 0, followed, keys), requests)
        for start, chunk in chunks
        if followed
    ]


def _decode(serving: Serving, requests: int, beside: int) -> Iterator[tuple[Batch, int]]:
    """As many as answers have tokens, but for those that passed beside prompts, and those that
    were predicted."""
    padded = next((size for size in sorted(serving.graph_sizes) if size >= requests), requests)
    count = ceil_div(serving.followed_tokens - beside, 1 + serving.predicted)
    if count < 1:
        return
    first, last = serving.input_tokens + 1, serving.input_tokens + serving.followed_tokens
    ends = max(1, count // 4)
    shares = (ends, count - 2 * ends, min(ends, count - ends))
    for keys, times in zip((first, (first + last) // 2, last), shares, strict=True):
        if times > 0:
            yield Batch(Phase.DECODE, padded, 1, keys, padding=padded - requests), times


def _predicting(batch: Batch, predicted: int) -> Iterator[tuple[Batch, int]]:
    """The pass of the model, which looks at what was predicted, and those of the layer that
    predicts: first of all tokens of that pass, then of one a request in the room of them all, which
    a decode's graph fills with empty requests."""
    if not predicted:
        yield batch, 1
        return
    queries = 1 + predicted if batch.phase is Phase.DECODE else batch.queries
    keys = max(batch.keys, queries)
    seen = replace(batch, queries=queries, keys=keys, predicted=predicted)
    yield seen, 1
    yield replace(seen, is_draft=True), 1
    if predicted > 1:
        one = replace(seen, phase=Phase.DECODE, queries=1, keys=keys + 1, is_draft=True)
        others = seen.tokens - (batch.requests - batch.padding)
        if batch.is_decode:
            yield replace(one, requests=seen.tokens, padding=others), predicted - 1
        else:
            yield replace(one, idle=others), predicted - 1
