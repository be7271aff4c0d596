"""The forward passes of a range of serving: what a scheduler makes of so many requests at once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from collector.codec.errors import BadInput
from collector.shapes.expression import ceil_div

# What one forward pass is given: prompts, tokens to follow answers, or both.

_BATCH_MOST_REQUESTS, _MOST_TOKENS = 1 << 16, 1 << 24


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass of one group of `tp` ranks: so many requests, each with `queries` tokens
    that are new and `keys` in all, those among them. The last `padding` of the requests are empty:
    they fill a graph's size, and nobody samples their tokens. They attend to one key: vLLM tells
    their length as 0, and one is the least that replays of attention take.

    Where prompts and answers are mixed, the phase is that of the prompts, and `followed` requests
    go on with an answer beside them: one token each, of `followed_keys` in all.

    Of a deployment that predicts tokens (MTP), `predicted` is how many it predicts after each: a
    decode of the model then looks at them all, and a pass that `is_draft` is one of the layer that
    predicts.

    `idle` tokens belong to no request: they pass through everything but attention, as where a layer
    that predicts goes on from a few tokens of a pass in the room of them all. `decodes_alone`: on a
    host that only decodes, which some releases serve by other kernels.

    `skew` and `imbalance` are in percent: answers have from so much less to so much more keys than
    `keys`, evenly spread, and experts as many rows less and more than an even load."""

    phase: Phase
    requests: int
    queries: int
    keys: int
    padding: int = 0
    followed: int = 0
    followed_keys: int = 0
    predicted: int = 0
    is_draft: bool = False
    skew: int = 0
    imbalance: int = 0
    idle: int = 0
    decodes_alone: bool = False

    def __str__(self) -> str:
        tokens = f"{self.requests} x {self.queries} tokens"
        empty = f", {self.padding} of them empty" if self.padding else ""
        mixed = f", and {self.followed} answers of {self.followed_keys}" if self.followed else ""
        empty += f", of {self.skew}% more and less" if self.skew else ""
        empty += f", experts of {self.imbalance}% more and less" if self.imbalance else ""
        empty += f", beside {self.idle} of no request" if self.idle else ""
        draft = ", by the layer that predicts" if self.is_draft else ""
        draft += ", on a host that only decodes" if self.decodes_alone else ""
        return f"{self.phase} of {tokens} with {self.keys} keys each{empty}{mixed}{draft}"

    @property
    def is_decode(self) -> bool:
        return self.phase is Phase.DECODE

    @property
    def tokens(self) -> int:
        """All that pass through the layers."""
        return self.attending + self.idle

    @property
    def attending(self) -> int:
        """Those of them that attend to keys: the new ones of requests."""
        return self.followed + self.requests * self.queries

    @property
    def sampled(self) -> int:
        """The tokens behind which a next one is told: of an answer all that are new, but for what
        a draft goes on from."""
        each = self.queries if self.is_decode and not self.is_draft else 1
        return self.followed + (self.requests - self.padding) * each

    @property
    def most_keys(self) -> int:
        """Those of the request that has most."""
        return max(keys for _, keys in self.lengths())

    def lengths(self) -> Iterator[tuple[int, int]]:
        """New tokens and keys of each request, in the order of the pass: answers, then prompts."""
        real = self.requests - self.padding
        if self.is_decode:
            for keys in spread(self.keys, real, self.skew):
                yield self.queries, max(keys, self.queries)
        else:
            for keys in spread(self.followed_keys, self.followed, self.skew):
                yield 1, keys
            yield from [(self.queries, self.keys)] * real
        yield from [(self.queries, self.queries)] * self.padding


def spread(mean: int, count: int, percent: int) -> list[int]:
    """So many numbers of at least 1 with that mean, evenly spread from so much less than it to so
    much more; one alone is the mean."""
    steps = max(1, count - 1)
    return [
        max(1, mean + mean * percent * (2 * at - steps) // (100 * steps)) if count > 1 else mean
        for at in range(count)
    ]


def check_batch(batch: Batch) -> None:
    """Raise BadInput for an impossible pass."""
    if min(batch.requests, batch.queries) < 1 or batch.keys < batch.queries:
        raise BadInput(f"{batch}: expected at least one token, and at least as many keys as tokens")
    if not 0 <= batch.padding < batch.requests or (batch.padding and not batch.is_decode):
        raise BadInput(
            f"{batch}: padding requires a decode with at least one request that is not empty"
        )
    if batch.followed < 0 or (batch.followed and (batch.is_decode or batch.followed_keys < 1)):
        raise BadInput(f"{batch}: mixed decodes require prompts, and at least one key each")
    if not (0 <= batch.skew < 100 and 0 <= batch.imbalance < 100):
        raise BadInput(f"{batch}: expected percentages from 0 to 99")
    if batch.predicted < 0 or (batch.predicted and batch.followed):
        raise BadInput(f"{batch}: predicted tokens require separate passes for prompts and decodes")
    if batch.is_decode and batch.queries not in (1, 1 + batch.predicted):
        raise BadInput(f"{batch}: a decode has one token per request plus the predicted tokens")
    if batch.idle < 0 or (batch.idle and not (batch.is_draft and batch.is_decode)):
        raise BadInput(f"{batch}: idle tokens require a draft decode")
    if batch.decodes_alone and not batch.is_decode:
        raise BadInput(f"{batch}: a host that only decodes has no prompts")
    if batch.is_draft and not batch.predicted:
        raise BadInput(f"{batch}: a draft requires at least one predicted token")
    requests, keys = batch.requests + batch.followed, max(batch.keys, batch.followed_keys)
    if requests > _BATCH_MOST_REQUESTS or keys > _MOST_TOKENS:
        raise BadInput(
            f"{batch}: expected at most {_BATCH_MOST_REQUESTS} requests of {_MOST_TOKENS} tokens"
        )


_MOST_CHUNKS = 4096
_SERVING_MOST_REQUESTS = 1 << 20  # of all passes: each is a number in the rows of its attention


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
    if sum(batch.requests + batch.followed for batch in found) > _SERVING_MOST_REQUESTS:
        raise BadInput(
            f"serving: expected passes of at most {_SERVING_MOST_REQUESTS} requests in total: "
            "use fewer or smaller concurrency values"
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
