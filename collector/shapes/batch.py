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
    predicts."""

    phase: Phase
    requests: int
    queries: int
    keys: int
    padding: int = 0
    followed: int = 0
    followed_keys: int = 0
    predicted: int = 0
    is_draft: bool = False

    def __str__(self) -> str:
        tokens = f"{self.requests} x {self.queries} tokens"
        empty = f", {self.padding} of them empty" if self.padding else ""
        mixed = f", and {self.followed} answers of {self.followed_keys}" if self.followed else ""
        draft = ", by the layer that predicts" if self.is_draft else ""
        return f"{self.phase} of {tokens} with {self.keys} keys each{empty}{mixed}{draft}"

    @property
    def is_decode(self) -> bool:
        return self.phase is Phase.DECODE

    @property
    def tokens(self) -> int:
        """All that are new."""
        return self.followed + self.requests * self.queries

    @property
    def sampled(self) -> int:
        """The tokens behind which a next one is told: of an answer all that are new, but for what
        a draft goes on from."""
        each = self.queries if self.is_decode and not self.is_draft else 1
        return self.followed + (self.requests - self.padding) * each

    def lengths(self) -> Iterator[tuple[int, int]]:
        """New tokens and keys of each request, in the order of the pass: answers, then prompts."""
        yield from [(1, self.followed_keys)] * self.followed
        yield from [(self.queries, self.keys)] * (self.requests - self.padding)
        yield from [(self.queries, self.queries)] * self.padding


def check_batch(batch: Batch) -> None:
    """Raise BadInput for a pass that nobody could make."""
    if min(batch.requests, batch.queries) < 1 or batch.keys < batch.queries:
        raise BadInput(f"{batch}: at least one token, and as many keys as tokens, are wanted")
    if not 0 <= batch.padding < batch.requests or (batch.padding and not batch.is_decode):
        raise BadInput(f"{batch}: a decode with a request that is not empty is wanted")
    if batch.followed < 0 or (batch.followed and (batch.is_decode or batch.followed_keys < 1)):
        raise BadInput(f"{batch}: answers, each with a key, stand beside prompts")
    if batch.predicted < 0 or (batch.predicted and batch.followed):
        raise BadInput(f"{batch}: predicted tokens want prompts and answers in passes of their own")
    if batch.is_decode and batch.queries not in (1, 1 + batch.predicted):
        raise BadInput(f"{batch}: a decode has one token a request, and those that are predicted")
    if batch.is_draft and not batch.predicted:
        raise BadInput(f"{batch}: a draft wants to predict tokens")
    requests, keys = batch.requests + batch.followed, max(batch.keys, batch.followed_keys)
    if requests > _MOST_REQUESTS or keys > _MOST_TOKENS:
        raise BadInput(
            f"{batch}: at most {_MOST_REQUESTS} requests of {_MOST_TOKENS} tokens are wanted"
        )
