"""What one forward pass is given: prompts, tokens to follow answers, or both."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from collector.errors import BadInput

_MOST_REQUESTS, _MOST_TOKENS = 1 << 16, 1 << 24


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
    if requests > _MOST_REQUESTS or keys > _MOST_TOKENS:
        raise BadInput(
            f"{batch}: expected at most {_MOST_REQUESTS} requests of {_MOST_TOKENS} tokens"
        )
