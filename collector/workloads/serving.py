"""The forward passes of a serving range: a scheduler's passes for concurrent requests."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from collector.codec.errors import BadInput
from collector.ops.expression import ceil_div

# The content of one forward pass: prompts, decode tokens, or both.

_BATCH_MOST_REQUESTS, _MOST_TOKENS = 1 << 16, 1 << 24


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Batch:
    """One forward pass of one group of `tp` ranks.

    It has `requests` requests, each with `queries` new tokens and `keys` tokens in total, the new
    ones included. The last `padding` requests are empty: they fill a graph's size, and their tokens
    are not sampled. They attend to one key: vLLM gives their length as 0, and one is the minimum
    that replays of attention accept.

    Where prompts and decodes are mixed, the phase is that of the prompts, and `mixed_decodes` other
    requests continue their answers in the same pass: one token each, `followed_keys` in total.

    In a deployment that predicts tokens (MTP), `predicted` is the number predicted after each
    token. A decode of the model then verifies all of them, and a pass with `is_draft` belongs to
    the layer that predicts.

    `idle` tokens belong to no request: they pass through everything except attention. This happens
    where a layer that predicts continues from a few tokens of a pass but has the size of the whole
    pass. `decodes_alone` is for a decode-only host, which some releases serve with other kernels.

    `skew` and `imbalance` are in percent. The keys of answers are spread evenly from `skew` percent
    below `keys` to `skew` percent above; the rows of experts likewise around an even load."""

    phase: Phase
    requests: int
    queries: int
    keys: int
    padding: int = 0
    mixed_decodes: int = 0
    followed_keys: int = 0
    predicted: int = 0
    is_draft: bool = False
    skew: int = 0
    imbalance: int = 0
    idle: int = 0
    decodes_alone: bool = False

    def __str__(self) -> str:
        text = f"{self.phase} of {self.requests} x {self.queries} tokens with {self.keys} keys each"
        text += f", {self.padding} of them padding" if self.padding else ""
        text += f", key skew {self.skew} %" if self.skew else ""
        text += f", expert imbalance {self.imbalance} %" if self.imbalance else ""
        text += f", {self.idle} idle tokens" if self.idle else ""
        if self.mixed_decodes:
            text += f", and {self.mixed_decodes} decodes with {self.followed_keys} keys"
        text += ", by the layer that predicts tokens" if self.is_draft else ""
        return text + (", on a decode-only host" if self.decodes_alone else "")

    @property
    def is_decode(self) -> bool:
        return self.phase is Phase.DECODE

    @property
    def tokens(self) -> int:
        """The number of all tokens that pass through the layers."""
        return self.attending + self.idle

    @property
    def attending(self) -> int:
        """The number of tokens that attend to keys: the new tokens of requests."""
        return self.mixed_decodes + self.requests * self.queries

    @property
    def sampled(self) -> int:
        """The number of tokens from which a next token is sampled.

        For an answer these are all new tokens, except those that a draft continues from."""
        each = self.queries if self.is_decode and not self.is_draft else 1
        return self.mixed_decodes + (self.requests - self.padding) * each

    @property
    def most_keys(self) -> int:
        """The keys of the request with the most keys."""
        return max(keys for _, keys in self.lengths())

    def lengths(self) -> Iterator[tuple[int, int]]:
        """Yield new tokens and keys of each request, in pass order: answers, then prompts."""
        real = self.requests - self.padding
        if self.is_decode:
            for keys in spread(self.keys, real, self.skew):
                yield self.queries, max(keys, self.queries)
        else:
            for keys in spread(self.followed_keys, self.mixed_decodes, self.skew):
                yield 1, keys
            yield from [(self.queries, self.keys)] * real
        yield from [(self.queries, self.queries)] * self.padding


def spread(mean: int, count: int, percent: int) -> list[int]:
    """Return `count` numbers of at least 1 around a mean.

    They are spread evenly from `percent` below the mean to `percent` above; a single number is the
    mean."""
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
    if batch.mixed_decodes < 0 or (
        batch.mixed_decodes and (batch.is_decode or batch.followed_keys < 1)
    ):
        raise BadInput(f"{batch}: mixed decodes require prompts, and at least one key each")
    if not (0 <= batch.skew < 100 and 0 <= batch.imbalance < 100):
        raise BadInput(f"{batch}: expected percentages from 0 to 99")
    if batch.predicted < 0 or (batch.predicted and batch.mixed_decodes):
        raise BadInput(f"{batch}: predicted tokens require separate passes for prompts and decodes")
    if batch.is_decode and batch.queries not in (1, 1 + batch.predicted):
        raise BadInput(f"{batch}: a decode has one token per request plus the predicted tokens")
    if batch.idle < 0 or (batch.idle and not (batch.is_draft and batch.is_decode)):
        raise BadInput(f"{batch}: idle tokens require a draft decode")
    if batch.decodes_alone and not batch.is_decode:
        raise BadInput(f"{batch}: a host that only decodes has no prompts")
    if batch.is_draft and not batch.predicted:
        raise BadInput(f"{batch}: a draft requires at least one predicted token")
    requests, keys = batch.requests + batch.mixed_decodes, max(batch.keys, batch.followed_keys)
    if requests > _BATCH_MOST_REQUESTS or keys > _MOST_TOKENS:
        raise BadInput(
            f"{batch}: expected at most {_BATCH_MOST_REQUESTS} requests of {_MOST_TOKENS} tokens"
        )


_MOST_CHUNKS = 4096
_SERVING_MOST_REQUESTS = 1 << 20  # in all passes: each is a number in the rows of its attention


@dataclass(frozen=True, slots=True)
class Serving:
    """A serving range.

    Args:
        concurrency: numbers of requests that one group of tp ranks serves at once
        input_tokens, output_tokens: tokens of each request
        batched_tokens: maximum in one pass; a longer prompt is split into chunks of this size
        graph_sizes: a decode pass is padded to the next of them; without any it is not
        phases: the phases of this deployment; another one may run the other phase
        mixed: requests arrive one after the other, and each prompt passes together with the
            answers of all others
        predicted: tokens predicted after each token (MTP); all predictions are right
        skew, imbalance: as in Batch"""

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
        """The tokens of an answer that decodes produce: the prefill produces the first one."""
        return self.output_tokens - 1


def passes(serving: Serving) -> dict[Batch, int]:
    """Return each forward pass, and how often it runs to serve every number of requests once.

    All requests run at the same time. Prefills hold as many whole prompts as fit, then the
    remaining ones, or one chunk of one prompt. Each token of an answer except the first has a
    decode; three decodes represent them: at the first token, in the middle and at the last. Where
    prompts and decodes are mixed, tokens that pass together with prompts need no decode. Raises
    BadInput for impossible settings."""
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
        mixed_decodes = _followed(serving, requests) if serving.mixed else 0
        prompts = tuple(_mixed(serving, requests, mixed_decodes) or _prefill(serving, requests))
        # tokens of each answer that pass with the prompts of other requests
        passed_with_prompts = mixed_decodes * len(prompts)
        for batch, times in (*prompts, *_decode(serving, requests, passed_with_prompts)):
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
    if sum(batch.requests + batch.mixed_decodes for batch in found) > _SERVING_MOST_REQUESTS:
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
    """Return the number of answers that pass together with each prompt.

    These are the answers of all other requests, limited by the size of a pass and by their tokens.
    """
    mixed_decodes = min(requests - 1, serving.batched_tokens - 1)
    chunks = ceil_div(serving.input_tokens, serving.batched_tokens - mixed_decodes)
    return min(mixed_decodes, serving.followed_tokens // chunks)


def _mixed(serving: Serving, requests: int, mixed_decodes: int) -> list[tuple[Batch, int]]:
    most, length = serving.batched_tokens - mixed_decodes, serving.input_tokens
    keys = length + max(1, serving.followed_tokens // 2)
    chunks = ((start, min(most, length - start)) for start in range(0, length, most))
    return [
        (Batch(Phase.PREFILL, 1, chunk, start + chunk, 0, mixed_decodes, keys), requests)
        for start, chunk in chunks
        if mixed_decodes
    ]


def _decode(
    serving: Serving, requests: int, passed_with_prompts: int
) -> Iterator[tuple[Batch, int]]:
    """Yield the decodes of all tokens, except those that passed with prompts or were predicted."""
    padded = next((size for size in sorted(serving.graph_sizes) if size >= requests), requests)
    count = ceil_div(serving.followed_tokens - passed_with_prompts, 1 + serving.predicted)
    if count < 1:
        return
    first, last = serving.input_tokens + 1, serving.input_tokens + serving.followed_tokens
    ends = max(1, count // 4)
    shares = (ends, count - 2 * ends, min(ends, count - ends))
    for keys, times in zip((first, (first + last) // 2, last), shares, strict=True):
        if times > 0:
            yield Batch(Phase.DECODE, padded, 1, keys, padding=padded - requests), times


def _predicting(batch: Batch, predicted: int) -> Iterator[tuple[Batch, int]]:
    """Yield the pass of the model, which verifies the predictions, and the passes of the MTP layer.

    The first MTP pass has all tokens of the model's pass. Each further pass has one token per
    request, in the size of the whole pass; a decode's graph fills the rest with empty requests."""
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
